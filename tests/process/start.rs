//! Starting, and being ready.

use tower_on_demand::{Backend, Stopped, process::Listen};

use crate::{
    child::child,
    common::{Test, exists, get, started},
};

#[tokio::test]
async fn a_child_is_started_called_and_stopped() {
    let _test = Test::begins();
    for (listen, role) in [
        (Listen::free_port(), "at={address}"),
        (Listen::unix(), "at={socket}"),
        (Listen::free_port().handed(), "at=handed"),
        (Listen::unix().handed(), "at=handed-unix"),
    ] {
        let client = started(child("a", role).listen(listen)).await;
        let pid = client.process().pid();
        let (status, body) = get(&client, "/").await.unwrap();
        assert_eq!((status.as_u16(), body), (200, pid.to_string()));
        assert_eq!(client.stop().await, Stopped::Gone);
        assert!(!exists(pid));
    }
}
