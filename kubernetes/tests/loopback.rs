//! Over loopback: `kubectl` against the fake, and HTTP to a pod.

use std::{
    convert::Infallible,
    io::Write as _,
    net::SocketAddr,
    process::{Command, Output},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tower::ServiceExt;
use tower_on_demand::{Backend, ErrorKind};
use tower_on_demand_kubernetes::{
    Scale, Workload,
    test_util::{Call, Cluster, Plan},
};

/// The fake, served on a port of its own.
async fn served(cluster: &Cluster) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(cluster.server("kubectl").serve(listener));
    address
}

/// `kubectl` with these arguments.
async fn kubectl(server: SocketAddr, args: &'static str) -> Output {
    let run = move || {
        Command::new("kubectl")
            .arg(format!("--server=http://{server}"))
            .args(["--kubeconfig=/dev/null", "--namespace=media"])
            .args(args.split(' '))
            .env("HOME", std::env::temp_dir())
            .output()
    };
    tokio::task::spawn_blocking(run).await.unwrap().unwrap()
}

async fn says(server: SocketAddr, args: &'static str) -> String {
    let output = kubectl(server, args).await;
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "kubectl {args}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn patches(cluster: &Cluster, who: &str) -> Vec<Call> {
    let mut calls = cluster.calls();
    calls.retain(|call| call.who == who && call.method == "PATCH");
    calls
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_and_this_crate_make_the_same_calls_and_understand_the_same_answers() {
    if Command::new("kubectl")
        .arg("version")
        .arg("--client")
        .output()
        .is_err()
    {
        // Past the test harness, which shows nothing of tests that pass.
        let _ = writeln!(std::io::stderr(), "skipped: kubectl is not installed");
        return;
    }
    let cluster = Cluster::new();
    let plan = Plan {
        starts: Duration::from_millis(50),
        stops: Duration::from_millis(50),
        ..Plan::default()
    };
    cluster.deployment("media", "films", plan);
    let server = served(&cluster).await;

    assert_eq!(
        says(server, "get deployments -o name").await,
        "deployment.apps/films\n"
    );
    // What kubectl scales is found to run.
    says(server, "scale deployment/films --replicas=2").await;
    assert_eq!(cluster.replicas("media", "films"), 2);
    says(
        server,
        "wait deployment/films --for=jsonpath={.status.readyReplicas}=2 --timeout=20s",
    )
    .await;
    let pods = says(server, "get pods -l app=films -o name").await;
    assert_eq!(pods.lines().count(), 2);

    let films = Workload::deployment("media", "films");
    let scale = Scale::new(cluster.client("host"), |endpoints| endpoints);
    let scaled = scale.oneshot(films).await.unwrap();
    assert_eq!(scaled.lease().ready().len(), 2);
    // What is stopped here is seen by kubectl.
    scaled.stop().await;
    let replicas = says(server, "get deployment films -o jsonpath={.spec.replicas}").await;
    assert_eq!(replicas, "0");
    assert_eq!(says(server, "get pods -o name").await, "");

    // The same call, but for the condition and for who says to make it.
    let (theirs, ours) = (patches(&cluster, "kubectl"), patches(&cluster, "host"));
    assert_eq!(theirs.len(), 1);
    assert_eq!(theirs[0].path, ours[0].path);
    let body = |call: &Call| serde_json::from_str::<serde_json::Value>(&call.body).unwrap();
    assert_eq!(
        body(&theirs[0]),
        serde_json::json!({ "spec": { "replicas": 2 } })
    );
    assert_eq!(body(&ours[0])["spec"], serde_json::json!({ "replicas": 0 }));

    // A condition that does not hold is a conflict to both.
    let stale = r#"patch deployment films --subresource=scale --type=merge -p {"metadata":{"resourceVersion":"1"},"spec":{"replicas":1}}"#;
    let refused = kubectl(server, stale).await;
    assert!(!refused.status.success());
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(why.contains("the object has been modified"), "{why}");
    assert_eq!(cluster.replicas("media", "films"), 0);
}

/// A server that answers with the `Host` that it was called by.
async fn pod() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let answer = service_fn(|request: Request<Incoming>| async move {
                let host = request.headers()["host"].to_str().unwrap().to_owned();
                let path = request.uri().path().to_owned();
                let sent = request.into_body().collect().await.unwrap().to_bytes();
                let text = format!("{host} {path} {}", String::from_utf8_lossy(&sent));
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(text))))
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
        }
    });
    address
}

#[tokio::test]
async fn http_calls_reach_the_ready_pod_with_the_host_that_they_name() {
    let cluster = Cluster::new();
    let plan = Plan {
        starts: Duration::from_millis(50),
        stops: Duration::from_millis(50),
        address: Some(pod().await),
        ..Plan::default()
    };
    cluster.deployment("media", "films", plan);
    let scale = Scale::http::<String>(cluster.client("host"));
    let films = Workload::deployment("media", "films").port_name("http");
    let scaled = scale.oneshot(films).await.unwrap();

    let asked = [
        ("http://films.example/a", None, "films.example /a hello"),
        ("/b?c=d", Some("other.example"), "other.example /b hello"),
    ];
    for (uri, host, answer) in asked {
        let mut request = Request::post(uri);
        if let Some(host) = host {
            request = request.header("host", host);
        }
        let request = request.body("hello".to_owned()).unwrap();
        let response = scaled.lease().oneshot(request).await.unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, answer);
    }

    let lease = scaled.lease();
    scaled.stop().await;
    let request = Request::get("/").body(String::new()).unwrap();
    let error = lease.oneshot(request).await.unwrap_err();
    assert_eq!(
        *error.kind(),
        ErrorKind::Died,
        "nothing is sent to where it was"
    );
}
