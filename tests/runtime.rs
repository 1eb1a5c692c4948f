//! `Runtime`: time that a test has taken over stays consistent.

use std::time::Duration;

use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_on_demand::{DropToStop, IdleEvict, LazyStartLayer, Runtime, State, UntilResponse};

#[tokio::test(start_paused = true)]
async fn an_idle_bound_holds_on_tokios_paused_time() {
    let runtime = Runtime::tokio();
    let (evictable, sweeper) = IdleEvict::pair(runtime.clone(), UntilResponse);
    tokio::spawn(sweeper.run());
    let maker = service_fn(|_: &'static str| async {
        let echo = service_fn(|n: u32| async move { Ok::<_, std::io::Error>(n) });
        Ok::<_, std::io::Error>(DropToStop::new(echo))
    });
    let layers = ServiceBuilder::new()
        .layer(LazyStartLayer::new(runtime, "echo"))
        .layer(evictable.idle_after(Duration::from_secs(900)));
    let stack = layers.service(maker);
    for _ in 0..3 {
        assert_eq!(stack.clone().oneshot(1).await.expect("served"), 1);
        tokio::time::sleep(Duration::from_secs(800)).await;
        assert_eq!(stack.status().state, State::Running);
    }
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert_eq!(
        (stack.status().state, stack.status().evictions),
        (State::Stopped, 1)
    );
}
