//! A filter: which events a client wants. What is not written in NIP-01 and NIP-50 is refused, not passed
//! over: whoever asked would get events that he excluded.

use serde_json::{Map, Value};

use super::tags::letter;
use super::{Event, Fault, Id, Key, TagKey};

/// How much may be asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Values in one list.
    pub(crate) values: usize,
    /// Events that are stored, of one filter; also what a filter without a limit gets.
    pub(crate) limit: u32,
    /// Tags.
    pub(crate) tags: usize,
}

/// Values of a tag with a name of one letter; one of them is enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TagFilter {
    pub(crate) name: char,
    values: Vec<String>,
    /// The same, as they are looked for; in order.
    pub(crate) keys: Vec<TagKey>,
}

impl TagFilter {
    fn new(name: char, values: Vec<String>) -> Self {
        let mut keys: Vec<_> = values.iter().map(|value| TagKey::of(name, value)).collect();
        keys.sort_unstable();
        Self { name, values, keys }
    }

    /// Whether one of its values is among `keys`, which are in order.
    fn is_among(&self, keys: &[TagKey]) -> bool {
        let (few, many) = match self.keys.len() < keys.len() {
            true => (self.keys.as_slice(), keys),
            false => (keys, self.keys.as_slice()),
        };
        few.iter().any(|key| many.binary_search(key).is_ok())
    }
}

/// Which events are wanted: those to which everything that is there applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    pub(crate) ids: Option<Vec<Id>>,
    pub(crate) authors: Option<Vec<Key>>,
    pub(crate) kinds: Option<Vec<u16>>,
    pub(crate) tags: Vec<TagFilter>,
    pub(crate) since: Option<i64>,
    pub(crate) until: Option<i64>,
    /// How many that are stored; it says nothing of those to come.
    pub(crate) limit: u32,
    /// Words to search for; nothing if there are none.
    pub(crate) search: Option<String>,
}

impl Filter {
    /// Reads a filter.
    pub(crate) fn read(json: &str, limits: Limits) -> Result<Self, Fault> {
        let not_one = |_error| Fault::new("invalid: a filter is an object");
        let fields: Map<String, Value> = serde_json::from_str(json).map_err(not_one)?;
        let mut filter = Self {
            limit: limits.limit,
            ..Self::default()
        };
        for (name, value) in &fields {
            filter.put(name, value, limits)?;
        }
        Ok(filter)
    }

    fn put(&mut self, name: &str, value: &Value, limits: Limits) -> Result<(), Fault> {
        let time = || value.as_i64().filter(|it| *it >= 0);
        let bad = |what: &str| Fault::new(format!("invalid: {name} is not {what}"));
        match name {
            "ids" => {
                let ids = list(name, value, limits, |it| Id::parse(it.as_str()?))?;
                self.ids = Some(ids);
            }
            "authors" => {
                let authors = list(name, value, limits, |it| Key::parse(it.as_str()?))?;
                self.authors = Some(authors);
            }
            "kinds" => {
                let kind = |it: &Value| u16::try_from(it.as_u64()?).ok();
                self.kinds = Some(list(name, value, limits, kind)?);
            }
            "since" => self.since = Some(time().ok_or_else(|| bad("a time in seconds"))?),
            "until" => self.until = Some(time().ok_or_else(|| bad("a time in seconds"))?),
            "limit" => {
                let limit = value.as_u64().ok_or_else(|| bad("a number from 0"))?;
                self.limit = u32::try_from(limit).unwrap_or(u32::MAX).min(limits.limit);
            }
            "search" => {
                let text = value.as_str().ok_or_else(|| bad("a text"))?;
                let words = searched(text);
                self.search = (!words.is_empty()).then_some(words);
            }
            _ => {
                let Some(name) = name.strip_prefix('#').and_then(letter) else {
                    return Err(Fault::new("unsupported: filter contains unknown elements"));
                };
                if self.tags.len() >= limits.tags {
                    let words = format!("invalid: more than {} tags", limits.tags);
                    return Err(Fault::new(words));
                }
                // Of these two NIP-01 knows what they may be.
                let is_hash = matches!(name, 'e' | 'p');
                let values = list(&format!("#{name}"), value, limits, |it| {
                    let value = it.as_str()?;
                    (!is_hash || Id::parse(value).is_some()).then(|| value.to_owned())
                })?;
                self.tags.push(TagFilter::new(name, values));
            }
        }
        Ok(())
    }

    /// Whether it wants `event`, whose tags are `keys`, when it comes.
    pub(crate) fn wants(&self, event: &Event, keys: &[TagKey]) -> bool {
        fn among<T: PartialEq>(list: Option<&Vec<T>>, value: &T) -> bool {
            list.is_none_or(|list| list.contains(value))
        }
        // Whether a text is found is for the index to say, and it speaks of what is stored.
        self.search.is_none()
            && among(self.kinds.as_ref(), &event.kind)
            && among(self.authors.as_ref(), &event.author)
            && among(self.ids.as_ref(), &event.id)
            && self.since.is_none_or(|since| event.created_at >= since)
            && self.until.is_none_or(|until| event.created_at <= until)
            && self.tags.iter().all(|tag| tag.is_among(keys))
    }

    /// The topics that it is limited to, lower-cased; nothing if it is not.
    pub(crate) fn topics(&self) -> Option<Vec<String>> {
        let tag = self.tags.iter().find(|tag| tag.name == 't')?;
        Some(
            tag.values
                .iter()
                .map(|value| value.to_lowercase())
                .collect(),
        )
    }

    /// Whether nothing can ever fit.
    pub(crate) fn is_impossible(&self) -> bool {
        let none = |length: Option<usize>| length == Some(0);
        none(self.ids.as_ref().map(Vec::len))
            || none(self.authors.as_ref().map(Vec::len))
            || none(self.kinds.as_ref().map(Vec::len))
            || self.tags.iter().any(|tag| tag.values.is_empty())
            || matches!((self.since, self.until), (Some(since), Some(until)) if since > until)
    }
}

/// What is searched for, without `key:value`: these are extensions of NIP-50, none of which is known here.
pub(crate) fn searched(text: &str) -> String {
    let words = text.split_whitespace().filter(|word| !is_extension(word));
    words.collect::<Vec<_>>().join(" ")
}

fn is_extension(word: &str) -> bool {
    let mut parts = word.splitn(2, ':');
    let (key, value) = (parts.next().unwrap_or_default(), parts.next());
    value.is_some_and(|value| !value.is_empty() && !value.starts_with('/'))
        && !key.is_empty()
        && key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
}

/// A list of values that are each as they should be, each once.
fn list<T: PartialEq>(
    name: &str,
    value: &Value,
    limits: Limits,
    read: impl Fn(&Value) -> Option<T>,
) -> Result<Vec<T>, Fault> {
    let bad = |what: &str| Fault::new(format!("invalid: {name} {what}"));
    let values = value.as_array().ok_or_else(|| bad("is not a list"))?;
    if values.len() > limits.values {
        let most = limits.values;
        return Err(bad(&format!("has more than {most} values")));
    }
    let mut read_values = Vec::with_capacity(values.len());
    for value in values {
        let value = read(value).ok_or_else(|| bad("has a value that can't be one"))?;
        if !read_values.contains(&value) {
            read_values.push(value);
        }
    }
    Ok(read_values)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Signer;
    use super::*;

    const LIMITS: Limits = Limits {
        values: 3,
        limit: 100,
        tags: 3,
    };

    fn filter(json: &Value) -> Filter {
        Filter::read(&json.to_string(), LIMITS).unwrap()
    }

    #[test]
    fn everything_that_is_there_applies_and_one_value_of_a_list_is_enough() {
        let other = "ab".repeat(32);
        let tags = [["t", "a"], ["t", "b"], ["e", &*other]];
        let tags = tags
            .iter()
            .map(|tag| tag.map(str::to_owned).to_vec())
            .collect();
        let event = Signer::random().event(100, 7, tags, String::new());
        let (id, author) = (event.id.to_string(), event.author.to_string());
        for (wanted, json) in [
            (true, json!({})),
            (true, json!({"ids": [id, other]})),
            (false, json!({"ids": [other]})),
            (false, json!({"ids": []})),
            (true, json!({"authors": [author], "kinds": [1, 7]})),
            (false, json!({"authors": [author], "kinds": [1]})),
            (true, json!({"since": 100, "until": 100})),
            (false, json!({"since": 101})),
            (false, json!({"until": 99})),
            (true, json!({"#t": ["z", "b"], "#e": [other]})),
            (false, json!({"#t": ["a"], "#e": ["cd".repeat(32)]})),
            (true, json!({"search": "language:ja include:spam"})),
            (false, json!({"search": "word language:ja"})),
            (false, json!({"#T": ["a"]})),
            (false, json!({"#t": []})),
            (true, json!({"limit": 0})),
        ] {
            assert_eq!(
                filter(&json).wants(&event, &event.tag_keys()),
                wanted,
                "{json}"
            );
        }
    }

    #[test]
    fn a_limit_is_never_above_the_highest() {
        assert_eq!(filter(&json!({})).limit, 100);
        assert_eq!(filter(&json!({"limit": 7})).limit, 7);
        assert_eq!(filter(&json!({"limit": 99_999_999_999_u64})).limit, 100);
    }

    #[test]
    fn what_is_no_filter_is_refused_with_the_field_that_is_wrong() {
        for (json, words) in [
            (json!([]), "an object"),
            (json!({"ids": "x"}), "ids is not a list"),
            (json!({"ids": ["AB"]}), "ids has a value"),
            (json!({"authors": [1]}), "authors has a value"),
            (json!({"kinds": [-1]}), "kinds has a value"),
            (json!({"kinds": [65_536]}), "kinds has a value"),
            (
                json!({"kinds": [1, 2, 3, 4]}),
                "kinds has more than 3 values",
            ),
            (json!({"since": -1}), "since is not a time"),
            (json!({"until": "now"}), "until is not a time"),
            (json!({"limit": -1}), "limit is not"),
            (json!({"limit": 1.5}), "limit is not"),
            (json!({"search": 1}), "search is not a text"),
            (json!({"#t": [1]}), "#t has a value"),
            (json!({"#e": ["x"]}), "#e has a value"),
            (json!({"#p": ["AB".repeat(32)]}), "#p has a value"),
            (json!({"#tt": ["a"]}), "unsupported"),
            (json!({"colour": 1}), "unsupported"),
        ] {
            let fault = Filter::read(&json.to_string(), LIMITS).unwrap_err();
            assert!(fault.to_string().contains(words), "{json}: {fault}");
        }
    }

    #[test]
    fn what_can_never_fit_is_known() {
        for json in [
            json!({"ids": []}),
            json!({"#t": []}),
            json!({"since": 2, "until": 1}),
        ] {
            assert!(filter(&json).is_impossible(), "{json}");
        }
        assert!(!filter(&json!({"since": 1, "until": 1})).is_impossible());
    }
}
