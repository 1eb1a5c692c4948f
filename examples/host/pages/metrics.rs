//! `/_metrics`: for Prometheus.

use std::time::Duration;

use http::{Response, StatusCode};
use metrics::{Unit, describe_gauge, gauge};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::time::sleep;
use tower_on_demand::metrics as layers;

use super::{text, with_type};
use crate::host::{Body, Host};

/// Starts take milliseconds, or minutes.
const SECONDS: [f64; 12] = [
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];

/// How often what was measured is summed up: nobody may ask for long.
const UPKEEP: Duration = Duration::from_secs(5);

/// What is recorded.
pub(crate) struct Metrics(PrometheusHandle);

impl Metrics {
    /// From now on what is measured in this process is recorded here.
    pub(crate) fn install() -> Result<Self, BuildError> {
        let builder = PrometheusBuilder::new();
        let builder =
            builder.set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)?;
        let recorded = builder.install_recorder()?;
        layers::describe();
        describe_gauge!(
            "host_children_processes",
            Unit::Count,
            "processes of a backend's children"
        );
        describe_gauge!(
            "host_children_resident_bytes",
            Unit::Bytes,
            "their resident memory"
        );
        describe_gauge!(
            "host_children_cpu_seconds",
            Unit::Seconds,
            "processor time that those alive have used"
        );
        describe_gauge!("host_children_threads", Unit::Count, "their threads");
        describe_gauge!(
            "host_children_open_fds",
            Unit::Count,
            "their open file descriptors"
        );
        let upkeep = recorded.clone();
        tokio::spawn(async move {
            loop {
                sleep(UPKEEP).await;
                upkeep.run_upkeep();
            }
        });
        Ok(Self(recorded))
    }
}

pub(super) async fn answer(host: &Host) -> Response<Body> {
    let Some(Metrics(recorded)) = &host.pages().metrics else {
        return text(StatusCode::NOT_FOUND, "nothing is recorded".into());
    };
    layers::record_ceiling("main", &host.ceiling().occupancy());
    for (name, served) in host.all_served() {
        layers::record_coalesce(name, &served.coalesce.statistics());
    }
    measure(host).await;
    with_type(
        "text/plain; version=0.0.4; charset=utf-8",
        recorded.render(),
    )
}

/// What the children use now.
async fn measure(host: &Host) {
    let usage = host.pages().usages.now(host).await;
    for (name, served) in host.all_served() {
        let children = served.children.alive();
        let of_all = |what: fn(&tower_on_demand::process::Stats) -> f64| -> f64 {
            let stats = children
                .iter()
                .filter_map(|child| usage.get(&child.pid())?.as_ref());
            stats.map(what).fold(0.0, |sum, one| sum + one)
        };
        let name = name.to_owned();
        gauge!("host_children_processes", "backend" => name.clone())
            .set(of_all(|stats| stats.processes as f64));
        gauge!("host_children_resident_bytes", "backend" => name.clone())
            .set(of_all(|stats| stats.rss as f64));
        gauge!("host_children_cpu_seconds", "backend" => name.clone())
            .set(of_all(|stats| stats.cpu.as_secs_f64()));
        gauge!("host_children_threads", "backend" => name.clone())
            .set(of_all(|stats| stats.threads as f64));
        gauge!("host_children_open_fds", "backend" => name).set(of_all(|stats| stats.fds as f64));
    }
}
