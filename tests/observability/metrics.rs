//! Counters, gauges and histograms, as `docs/observability.md` has them.

use std::collections::{BTreeMap, BTreeSet};

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_on_demand::{
    CeilingLayer, CoalesceLayer, IdleEvict, LazyStartLayer, UntilResponse, metrics, test_util,
};

use super::section;
use crate::support::{World, ms, secs};

/// What a recorder was told, by `name{label=value,…}`. Counters and gauges are as they stand; of a
/// histogram all values.
#[derive(Default)]
struct Told {
    values: BTreeMap<String, Vec<f64>>,
    /// By name: its kind, its labels, whether it was described.
    names: BTreeMap<String, (&'static str, BTreeSet<String>, bool)>,
}

impl Told {
    /// Adds what was told since. (A snapshot starts all values anew.)
    fn read(&mut self, snapshotter: &Snapshotter) {
        for (key, unit, description, value) in snapshotter.snapshot().into_vec() {
            let key = key.key();
            let labels = key
                .labels()
                .map(|it| format!("{}={}", it.key(), it.value()));
            let mut labels: Vec<_> = labels.collect();
            labels.sort();
            let id = format!("{}{{{}}}", key.name(), labels.join(","));
            let (kind, values) = match value {
                DebugValue::Counter(count) => ("counter", vec![count as f64]),
                DebugValue::Gauge(value) => ("gauge", vec![value.into_inner()]),
                DebugValue::Histogram(values) => (
                    "histogram",
                    values.into_iter().map(|it| it.into_inner()).collect(),
                ),
            };
            let stands = self.values.entry(id).or_default();
            match kind {
                "histogram" => stands.extend(values),
                _ => *stands = vec![stands.iter().chain(&values).sum()],
            }
            let names = key.labels().map(|it| it.key().to_owned()).collect();
            let described = unit.is_some() && description.is_some();
            self.names
                .insert(key.name().to_owned(), (kind, names, described));
        }
    }

    fn of(&self, id: &str) -> &[f64] {
        let found = self.values.get(id);
        found.unwrap_or_else(|| panic!("no {id} in {:?}", self.values.keys()))
    }

    fn one(&self, id: &str) -> f64 {
        match self.of(id) {
            [one] => *one,
            many => panic!("{id} is {many:?}"),
        }
    }
}

#[test]
fn metrics_count_what_the_backends_saw_and_are_those_of_the_table() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let mut told = Told::default();
    ::metrics::with_local_recorder(&recorder, || {
        metrics::describe();
        let (runtime, clock) = test_util::runtime(1);
        let world = World::new(&runtime);
        let ceiling = CeilingLayer::new(runtime.clone(), 2).wait(secs(1));
        let (evictable, sweeper) = IdleEvict::pair(runtime.clone(), UntilResponse);
        runtime.spawn(sweeper.run());
        let stack = |name: &str| {
            ServiceBuilder::new()
                .layer(LazyStartLayer::new(runtime.clone(), name.to_owned()))
                .layer(evictable.clone().idle_after(secs(60)))
                .layer(ceiling.clone())
                .service(world.maker())
        };
        let [a, b, c, d] = ["a", "b", "c", "d"].map(stack);

        // Started, used, reloaded, evicted for age.
        for _ in 0..100 {
            clock.block_on(a.clone().oneshot(ms(0))).expect("served");
        }
        clock.block_on(a.handle().reload(None)).expect("reloaded");
        clock.advance(ms(50));
        told.read(&snapshotter);
        assert_eq!(told.one("on_demand_reloads_total{backend=a}"), 1.0);
        assert_eq!(told.one("on_demand_alive{backend=a}"), 1.0);
        assert_eq!(
            told.one("on_demand_stops_total{backend=a,way=graceful}"),
            1.0
        );
        clock.advance(secs(61));
        told.read(&snapshotter);
        assert_eq!(told.one("on_demand_alive{backend=a}"), 0.0);
        assert_eq!(
            told.one("on_demand_evictions_total{backend=a,reason=idle}"),
            1.0
        );
        assert_eq!(
            told.one("on_demand_stops_total{backend=a,way=graceful}"),
            2.0
        );
        assert_eq!(told.of("on_demand_stop_seconds{backend=a}"), [0.01, 0.01]);

        // Crashed, failed.
        clock.block_on(a.clone().oneshot(ms(0))).expect("served");
        world.kill("a");
        clock.advance(secs(1));
        world.plan("a", |plan| plan.failing = 1);
        for _ in 0..3 {
            clock
                .block_on(a.clone().oneshot(ms(0)))
                .expect_err("fails, and is not tried again");
        }
        clock.advance(secs(1));
        told.read(&snapshotter);
        assert_eq!(told.one("on_demand_starts_total{backend=a}"), 2.0);
        assert_eq!(told.of("on_demand_start_seconds{backend=a}"), [0.01, 0.01]);
        assert_eq!(told.one("on_demand_crashes_total{backend=a}"), 1.0);
        assert_eq!(told.one("on_demand_stops_total{backend=a,way=died}"), 1.0);
        let failures = "on_demand_start_failures_total{backend=a,kind=start_failed}";
        assert_eq!(told.one(failures), 1.0);
        let refused = "on_demand_callers_refused_total{backend=a,kind=backing_off}";
        assert_eq!(told.one(refused), 2.0);

        // Two are busy: one waits in vain, one gets the room of the first that falls idle, one is told
        // to stop meanwhile.
        let busy = [&a, &b].map(|stack| clock.spawn(stack.clone().oneshot(secs(30))));
        clock.advance(ms(100));
        clock
            .block_on(c.clone().oneshot(ms(0)))
            .expect_err("no room");
        clock.advance(secs(29) - ms(500));
        let waiting = [&c, &d].map(|stack| clock.spawn(stack.clone().oneshot(ms(0))));
        clock.run();
        metrics::record_ceiling("main", &ceiling.occupancy());
        told.read(&snapshotter);
        assert_eq!(told.one("on_demand_starting{backend=c}"), 1.0);
        assert_eq!(told.one("on_demand_starting{backend=d}"), 1.0);
        assert_eq!(told.one("on_demand_room_limit{ceiling=main}"), 2.0);
        assert_eq!(told.one("on_demand_room_used{ceiling=main}"), 2.0);
        assert_eq!(told.one("on_demand_room_waiting{ceiling=main}"), 2.0);
        clock.block_on(d.handle().stop()).expect("stopped");
        clock.advance(secs(2));
        told.read(&snapshotter);
        assert_eq!(told.one("on_demand_starting{backend=c}"), 0.0);
        assert_eq!(told.one("on_demand_starting{backend=d}"), 0.0);
        assert_eq!(
            told.one("on_demand_start_refusals_total{backend=c,kind=no_room}"),
            1.0
        );
        assert_eq!(
            told.one("on_demand_starts_dropped_total{backend=d,reason=stopped}"),
            1.0
        );
        let refused = told.of("on_demand_room_wait_seconds{backend=c,outcome=refused}");
        assert_eq!(refused, [1.0]);
        let admitted = told.of("on_demand_room_wait_seconds{backend=c,outcome=admitted}");
        assert!(
            matches!(admitted, [wait] if (0.01..1.0).contains(wait)),
            "{admitted:?}"
        );
        drop((busy, waiting));

        // Whatever ends it, what stood is taken back.
        drop((a, b, c, d, runtime, world));
        drop(clock);
        told.read(&snapshotter);
        for (id, value) in &told.values {
            if id.starts_with("on_demand_alive{") || id.starts_with("on_demand_starting{") {
                assert_eq!(value, &[0.0], "{id}");
            }
        }

        // An identity space counts by itself, and hands its counts on.
        let by_name = CoalesceLayer::new(|name: &&'static str| (!name.is_empty()).then_some(*name));
        let (layer, handle) = by_name.with_handle();
        let service = layer.layer(service_fn(async |name: &'static str| {
            Ok::<_, std::io::Error>(name.len())
        }));
        for name in ["one", "", "two"] {
            futures_executor::block_on(service.clone().oneshot(name)).expect("served");
        }
        metrics::record_coalesce("names", &handle.statistics());
        told.read(&snapshotter);
        for (role, calls) in [("led", 2.0), ("joined", 0.0), ("passed_by", 1.0)] {
            let id = format!("on_demand_coalesce_calls_total{{role={role},space=names}}");
            assert_eq!(told.one(&id), calls, "{role}");
        }
    });

    // The table: name, kind, labels. All of them are told and described, and nothing else is.
    let table = section("Metrics");
    let rows: BTreeMap<String, (String, BTreeSet<String>)> = table
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| {
            let columns: Vec<_> = line.split('|').map(str::trim).collect();
            let labels = columns[3].split('`').skip(1).step_by(2);
            let name = columns[1].trim_matches('`').to_owned();
            (
                name,
                (columns[2].to_owned(), labels.map(str::to_owned).collect()),
            )
        })
        .collect();
    let names: Vec<_> = told.names.keys().collect();
    assert_eq!(rows.keys().collect::<Vec<_>>(), names);
    for (name, (kind, labels, described)) in &told.names {
        let (its, listed) = &rows[name];
        assert_eq!((its.as_str(), listed), (*kind, labels), "{name}");
        assert!(described, "{name} is described, with a unit");
    }
}
