//! The last test: nothing is left of the others.

use std::time::Duration;

use crate::{
    child::{RUN, run},
    common::{Test, processes, until},
};

/// Tests start in the order of their names, so all others have begun when this one does.
#[tokio::test]
async fn e9_no_process_is_left_behind() {
    // The one that has just begun has not said so yet.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let bound = Duration::from_secs(120);
    crate::common::within(bound, "the other tests end", || Test::running() == 0).await;
    let me = std::process::id();
    until("no child is left, not even defunct", || {
        processes(|_, parent, _, _| parent == me).is_empty()
    })
    .await;
    let mark = format!("{RUN}={}\0", run());
    until("no process of this run is left", || {
        processes(|pid, _, _, _| {
            let environ = std::fs::read_to_string(format!("/proc/{pid}/environ"));
            pid != me && environ.is_ok_and(|environ| environ.contains(&mark))
        })
        .is_empty()
    })
    .await;
}
