//! `/_orders`: taken from the host's own page, and only where that is wanted.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use serde_json::Value;

use crate::support::{Host, demo};

/// POSTs an order with these headers.
async fn order(host: &Host, path: &str, headers: &[(&str, &str)]) -> Response<String> {
    let mut request = Request::post(host.url(path));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::<Bytes>::default()).unwrap();
    let (parts, body) = host.send(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Response::from_parts(parts, String::from_utf8(body.to_vec()).unwrap())
}

/// An order as the page gives it.
async fn from_the_page(host: &Host, path: &str) -> Response<String> {
    let origin = format!("http://{}", host.address());
    order(
        host,
        path,
        &[("origin", &origin), ("sec-fetch-site", "same-origin")],
    )
    .await
}

fn state(status: &Value, name: &str) -> String {
    let backends = status["backends"].as_array().unwrap();
    let backend = backends.iter().find(|backend| backend["name"] == name);
    backend.unwrap()["state"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn no_orders_are_taken_unless_the_host_was_told_to() {
    let host = Host::start(&demo(1, &["films"], ""));
    let refused = from_the_page(&host, "/_orders/films/start").await;
    assert_eq!(refused.status(), 403);
    assert!(refused.body().contains("--admin"), "{}", refused.body());
    let status = host.status().await;
    assert_eq!(status["admin"], false);
    assert_eq!(state(&status, "films"), "stopped");
    host.stop();
}

#[tokio::test]
async fn orders_are_taken_from_the_hosts_own_page_only() {
    let host = Host::start_with(&demo(1, &["films"], ""), &["--admin"]);
    let path = "/_orders/films/start";
    let origin = format!("http://{}", host.address());
    let port = host.address().port();
    let evil = (
        format!("evil.example:{port}"),
        format!("http://evil.example:{port}"),
    );
    for (headers, why) in [
        (&[][..], "Origin"),
        (&[("origin", "http://evil.example")], "Origin"),
        (&[("origin", "null")], "Origin"),
        (
            &[("origin", &*origin), ("sec-fetch-site", "cross-site")],
            "Sec-Fetch-Site",
        ),
        (
            &[("origin", &*origin), ("sec-fetch-site", "same-site")],
            "Sec-Fetch-Site",
        ),
        // Somebody's name that was made to lead here.
        (
            &[
                ("host", &*evil.0),
                ("origin", &*evil.1),
                ("sec-fetch-site", "same-origin"),
            ],
            "address",
        ),
    ] {
        let refused = order(&host, path, headers).await;
        assert_eq!(refused.status(), 403, "{headers:?}");
        assert!(
            refused.body().contains(why),
            "{headers:?}: {}",
            refused.body()
        );
    }
    let looked = host.get(path).await.unwrap();
    assert_eq!(
        (looked.status().as_u16(), &looked.headers()["allow"]),
        (405, &"POST".parse().unwrap())
    );
    assert_eq!(state(&host.status().await, "films"), "stopped");

    let localhost = (
        format!("localhost:{port}"),
        format!("http://localhost:{port}"),
    );
    let given = order(
        &host,
        path,
        &[("host", &localhost.0), ("origin", &localhost.1)],
    )
    .await;
    assert_eq!(given.status(), 200, "{}", given.body());
    assert_eq!(state(&host.status().await, "films"), "running");
    host.stop();
}

#[tokio::test]
async fn orders_are_carried_out_and_told_what_came_of_them() {
    let missing = "[backend.missing]\ncommand = [\"no-such-program\", \"{port}\"]\n";
    let host = Host::start_with(&demo(1, &["films", "maps"], missing), &["--admin"]);
    let give = async |backend: &str, what: &str| {
        let answer = from_the_page(&host, &format!("/_orders/{backend}/{what}")).await;
        let status = answer.status().as_u16();
        (status, answer.into_body())
    };
    assert_eq!(give("films", "start").await.0, 200);
    assert!(host.line("films").await.contains("Running"));
    // As a call would: the room is made.
    assert_eq!(give("maps", "start").await.0, 200);
    assert!(host.line("films").await.contains("1 evictions"));
    // Its own room is all there is: it is replaced in place.
    assert_eq!(give("maps", "reload").await.0, 200);
    assert!(host.line("maps").await.contains("Running   "));
    assert_eq!(give("maps", "stop").await.0, 200);
    assert_eq!(state(&host.status().await, "maps"), "stopped");
    assert_eq!(give("maps", "unload").await.0, 200);
    assert_eq!(host.get("/maps/").await.unwrap().status(), 503);
    assert_eq!(give("maps", "load").await.0, 200);
    host.ok("/maps/").await;

    let (status, told) = give("missing", "start").await;
    assert_eq!(status, 502);
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["done"], false);
    assert!(
        told["error"]
            .as_str()
            .unwrap()
            .contains("command not found: no-such-program")
    );
    assert_eq!(give("nope", "start").await.0, 404);
    assert_eq!(give("films", "dance").await.0, 404);
    host.stop();
}
