//! Label and field selectors.

use serde_json::Value;

/// What must hold of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Selector(Vec<Demand>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Demand {
    Name(String),
    Label(String, String),
    NotLabel(String, String),
    Has(String),
    HasNot(String),
}

/// Something that every selected object has, to find it by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Term {
    All,
    Name(String),
    /// `key=value`.
    Label(String),
}

impl Selector {
    /// What is demanded by the two parameters of a list or a watch; the part that is not understood, if
    /// there is one.
    pub(super) fn parse(labels: &str, fields: &str) -> Result<Self, String> {
        let mut demands = Vec::new();
        for part in parts(fields) {
            match part.split_once('=') {
                Some(("metadata.name", name)) => {
                    demands.push(Demand::Name(name.trim_start_matches('=').to_owned()));
                }
                _ => return Err(part.to_owned()),
            }
        }
        for part in parts(labels) {
            if part.contains(['(', ' ']) {
                return Err(part.to_owned());
            }
            let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
            demands.push(if let Some(of) = part.split_once("!=").map(owned) {
                Demand::NotLabel(of.0, of.1)
            } else if let Some(of) = part.split_once("==").or(part.split_once('=')).map(owned) {
                Demand::Label(of.0, of.1)
            } else if let Some(key) = part.strip_prefix('!') {
                Demand::HasNot(key.to_owned())
            } else {
                Demand::Has(part.to_owned())
            });
        }
        Ok(Self(demands))
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        let metadata = &object["metadata"];
        let label = |key: &str| metadata["labels"].get(key).and_then(Value::as_str);
        self.0.iter().all(|demand| match demand {
            Demand::Name(name) => metadata["name"] == **name,
            Demand::Label(key, value) => label(key) == Some(value),
            Demand::NotLabel(key, value) => label(key) != Some(value),
            Demand::Has(key) => label(key).is_some(),
            Demand::HasNot(key) => label(key).is_none(),
        })
    }

    /// The narrowest thing to find its objects by.
    pub(super) fn term(&self) -> Term {
        let mut term = Term::All;
        for demand in &self.0 {
            match demand {
                Demand::Name(name) => return Term::Name(name.clone()),
                Demand::Label(key, value) => term = Term::Label(format!("{key}={value}")),
                _ => {}
            }
        }
        term
    }
}

fn parts(selector: &str) -> impl Iterator<Item = &str> {
    let parts = selector.split(',').map(str::trim);
    parts.filter(|part| !part.is_empty())
}
