//! What a backend does is nobody's call: its tasks hold no caller's span.

use std::sync::{Arc, Mutex};

use tower::{Layer as _, ServiceBuilder, ServiceExt, service_fn};
use tower_on_demand::{
    CeilingLayer, CoalesceLayer, DropToStop, Error, IdleEvict, LazyStartLayer, Runtime, State,
    UntilResponse,
};
use tracing::{Instrument, info, info_span};
use tracing_subscriber::{
    layer::{Context, Layer, SubscriberExt},
    registry::LookupSpan,
};

use crate::support::secs;

/// The target of an event, and the span it was in.
type Seen = (String, Option<&'static str>);

/// The spans that were closed, and each event with the span it was in.
#[derive(Clone, Default)]
struct Log {
    closed: Arc<Mutex<Vec<&'static str>>>,
    events: Arc<Mutex<Vec<Seen>>>,
}

impl<S> Layer<S> for Log
where
    S: tracing::Subscriber + for<'span> LookupSpan<'span>,
{
    fn on_event(&self, event: &tracing::Event<'_>, context: Context<'_, S>) {
        // That which is entered, whatever the event says of its parent.
        let within = context.lookup_current().map(|span| span.name());
        let target = event.metadata().target().to_owned();
        self.events.lock().expect("whole").push((target, within));
    }

    fn on_close(&self, id: tracing::span::Id, context: Context<'_, S>) {
        let span = context.span(&id).expect("a span");
        self.closed.lock().expect("whole").push(span.name());
    }
}

#[test]
fn no_task_holds_a_callers_span_or_works_in_it() {
    let log = Log::default();
    let subscriber = tracing_subscriber::registry().with(log.clone());
    let _told = tracing::subscriber::set_default(subscriber);
    let host = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    host.block_on(async {
        let runtime = Runtime::tokio();
        let ceiling = CeilingLayer::new(runtime.clone(), 1);
        let (evictable, sweeper) = IdleEvict::pair(runtime.clone(), UntilResponse);
        runtime.spawn(sweeper.run());
        let maker = service_fn(|name: &'static str| async move {
            info!(target: "maker", "makes {name}");
            tokio::task::yield_now().await;
            let worker = service_fn(|n: u32| async move { Ok::<_, Error>(n) });
            Ok::<_, Error>(DropToStop::new(worker))
        });
        let stack = |name: &'static str| {
            ServiceBuilder::new()
                .layer(LazyStartLayer::new(runtime.clone(), name))
                .layer(evictable.clone().idle_after(secs(60)))
                .layer(ceiling.clone())
                .service(maker)
        };
        let (a, b) = (stack("a"), stack("b"));
        let shared = CoalesceLayer::new(|n: &u32| Some(*n))
            .spawn_on(runtime.clone())
            .layer(a.clone());

        for (name, call) in [
            ("the first call", shared.clone().oneshot(1)),
            ("one that is served at once", shared.clone().oneshot(2)),
        ] {
            let answered = async { call.await.expect("served") };
            let span = info_span!("caller", name);
            answered.instrument(span).await;
        }
        // It runs, by tasks that the first call has spawned, and both callers are history.
        assert_eq!(a.status().state, State::Running);
        assert_eq!(*log.closed.lock().expect("whole"), ["caller", "caller"]);

        // The other one needs its room: what that leads to is not in the caller's span either.
        let evicting = async { b.clone().oneshot(1).await.expect("served") };
        evicting.instrument(info_span!("caller")).await;
        b.handle().stop().await.expect("stopped");
    });
    let events = log.events.lock().expect("whole");
    let of = |target: &str| events.iter().filter(|event| event.0 == target).count();
    assert_eq!(of("maker"), 2);
    assert!(of("tower_on_demand") >= 8, "{events:?}");
    let within: Vec<_> = events.iter().filter(|event| event.1.is_some()).collect();
    assert!(within.is_empty(), "{within:?}");
}
