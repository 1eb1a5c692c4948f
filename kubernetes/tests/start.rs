//! Cold starts, and what keeps them from ending well.

mod support;

use support::{World, ms, secs};
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn the_first_call_scales_the_workload_up_and_is_answered_by_a_ready_pod() {
    let world = World::new();
    let host = world.host("host", world.films(), secs(60));
    assert_eq!(world.cluster.replicas("media", "films"), 0);

    let begun = Instant::now();
    host.call(ms(10)).await.unwrap();
    assert_eq!(
        begun.elapsed().as_secs(),
        2,
        "it waited for the pod, and not longer"
    );
    assert_eq!(world.cluster.replicas("media", "films"), 1);
    let saw = world.saw();
    assert_eq!((saw.served, saw.lost, saw.cut), (1, 0, 0));

    tokio::time::sleep(secs(70)).await;
    assert_eq!(
        world.cluster.replicas("media", "films"),
        0,
        "idle, so it was scaled down"
    );
    assert_eq!(world.cluster.pods("media", "films"), 0);
}
