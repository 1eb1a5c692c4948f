//! The stack: from many callers to few subprocesses.

use std::{path::PathBuf, time::Duration};

use tower::{ServiceBuilder, util::BoxCloneSyncService};
use tower_on_demand::{BoxError, CoalesceHandle, CoalesceLayer, Runtime};

use crate::{
    line::Line,
    program::{Program, Verdict},
};

/// By how much a caller is more patient than a subprocess is bounded.
///
/// So that the error that comes first is the one that knows: "it took too long, and was ended". The caller's own
/// deadline is for what should not happen, such as a subprocess that cannot be ended.
const MARGIN: Duration = Duration::from_secs(3);

/// Asks about a file.
pub(crate) type Probes = BoxCloneSyncService<PathBuf, Verdict, BoxError>;

/// Read it downwards: that is the way of a request.
pub(crate) fn stack(
    runtime: &Runtime,
    program: Program,
    linger: Duration,
    places: usize,
    line: Line,
) -> (Probes, CoalesceHandle<PathBuf>) {
    // The file is what a probe depends on, and nothing else: not what its caller will do with the answer.
    let (coalesce, handle) = CoalesceLayer::new(|file: &PathBuf| Some(file.clone()))
        // For whoever asks just too late to join: a success can be had for a moment longer.
        .linger(runtime.clone(), linger)
        // A probe is worth finishing even if all have left: who comes next joins it.
        .spawn_on(runtime.clone())
        .with_handle();
    let bound = program.within();
    let measured = line.clone();

    let stack = ServiceBuilder::new()
        .timeout(bound + MARGIN)
        // From here on there is one call per file, whoever asks.
        .layer(coalesce)
        // So the limit is beneath: it counts subprocesses, and who joins takes no place. A place is given back
        // when its subprocess is gone, before anybody is told and before the answer lingers.
        .layer(line)
        .load_shed()
        .concurrency_limit(places)
        .service_fn(move |file: PathBuf| {
            let (program, line) = (program.clone(), measured.clone());
            async move {
                let _hold = line.hold(&file);
                program.ask(&file).await
            }
        });
    (BoxCloneSyncService::new(stack), handle)
}
