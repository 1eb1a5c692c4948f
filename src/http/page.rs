//! The pages of [`ProgressPage`](super::ProgressPage), as text.

use std::{
    fmt::{self, Write},
    time::Duration,
};

use crate::lazy_start::{State, Status};

/// After how many seconds the page comes back.
pub(super) const RELOAD: u64 = 1;

/// Nothing from elsewhere, and both of the browser's colour schemes.
const STYLE: &str = "\
:root { color-scheme: light dark; font: 1rem/1.5 system-ui, sans-serif; }
body { margin: 15vh auto 0; max-width: 34rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; line-height: 1.2; overflow-wrap: anywhere; }
progress { width: 100%; height: .8rem; accent-color: #2b6cb0; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
";

/// The page of one who waits for a start.
pub(super) fn waiting(status: &Status) -> String {
    let name = Escaped(&status.name);
    let mut says = String::new();
    let since = Seconds(status.since);
    let _ = match (status.state, status.queued) {
        (_, Some(queued)) => {
            let (place, waited) = (queued.place, Seconds(queued.waited));
            write!(
                says,
                "It waits for room, at place {place} in line, and has waited for {waited}."
            )
        }
        (State::Stopping, None) => {
            write!(says, "What ran before is being stopped, for {since} now.")
        }
        (State::Starting, None) => write!(says, "Its start began {since} ago."),
        _ => write!(says, "Its start is about to begin."),
    };
    let label = format!("aria-label=\"{name} is starting\"");
    let mut bar = format!("<progress {label}></progress>");
    if let Some(last) = status.last_start {
        let _ = write!(says, " The last one took {}.", Seconds(last.took));
        if status.state == State::Starting && !last.took.is_zero() {
            // It may take longer this time, and is not done before it is.
            let part = status.since.as_secs_f64() / last.took.as_secs_f64();
            let part = part.min(0.95);
            bar = format!("<progress {label} value=\"{part:.2}\"></progress>");
        }
    }
    page(
        &format_args!("{name} is starting"),
        Some(RELOAD),
        &format_args!(
            "{bar}\n<p role=\"status\">{says}</p>\n\
             <p>This page reloads by itself, until it is what you asked for. <a href=\"\">Reload it now</a></p>"
        ),
    )
}

/// The page of one whose start has failed. `why` may be nothing.
pub(super) fn failed(name: &str, why: &str) -> String {
    let name = Escaped(name);
    let mut says = String::new();
    if !why.is_empty() {
        let _ = writeln!(says, "<pre>{}</pre>", Escaped(why));
    }
    page(
        &format_args!("{name} could not be started"),
        None,
        &format_args!("{says}<p><a href=\"\">Try again</a> in a few seconds.</p>"),
    )
}

fn page(title: &dyn fmt::Display, reload: Option<u64>, content: &dyn fmt::Display) -> String {
    let refresh = match reload {
        Some(after) => format!("<meta http-equiv=\"refresh\" content=\"{after}\">\n"),
        None => String::new(),
    };
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         {refresh}<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n\
         <body>\n<main>\n<h1>{title}</h1>\n{content}\n</main>\n</body>\n</html>\n"
    )
}

/// Text as HTML has it.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for char in self.0.chars() {
            match char {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                char => f.write_char(char)?,
            }
        }
        Ok(())
    }
}

/// A duration for people.
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        if seconds < 10.0 {
            write!(f, "{seconds:.1} s")
        } else {
            write!(f, "{seconds:.0} s")
        }
    }
}
