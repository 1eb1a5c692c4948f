//! What a host is told of its backends: events, snapshots, metrics.

#[allow(clippy::disallowed_methods)] // an example may read the clock
#[allow(dead_code)] // the host uses all of it
#[path = "../examples/host/feed.rs"]
mod feed;
mod support;

/// `cargo test observability` runs them by this name.
mod observability {
    mod events;
    mod feed;
    mod header;
    mod metrics;
    mod snapshots;
    mod spans;

    /// A section of `docs/observability.md`.
    fn section(title: &str) -> String {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/observability.md");
        let text = std::fs::read_to_string(path).expect("the document");
        let mut sections = text.split("\n## ");
        let found = sections.find_map(|it| it.strip_prefix(title)?.strip_prefix('\n'));
        found.expect("the section").to_owned()
    }
}
