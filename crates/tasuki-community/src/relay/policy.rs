//! What a relay of this configuration takes: topics, sizes, kinds.

use crate::config::{Limits, TopicIds, TopicMode, Topics};
use crate::nostr::{AUTH, Class, Event, Filter, Prefix, Refusal, class, is_repost};
use crate::rules::Rules;
use crate::search::{QUESTION, Query};

/// The longest name of a topic, in bytes.
const TOPIC_LIMIT: usize = 256;

/// The longest `d`, in bytes.
const D_LIMIT: usize = 512;

/// The rules.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    pub(crate) limits: Limits,
    pub(crate) topics: Topics,
    pub(crate) rules: Rules,
}

impl Policy {
    /// Why nobody may publish `event` here, as far as what it says goes. `length` is that of its JSON.
    pub(crate) fn admits(&self, event: &Event, length: usize) -> Result<(), Refusal> {
        let Limits {
            event: most, tags, ..
        } = self.limits;
        if length > most.bytes() {
            return Err(Refusal::invalid(format!("the event is larger than {most}")));
        }
        if event.tags.len() > tags {
            return Err(Refusal::invalid(format!(
                "the event has more than {tags} tags"
            )));
        }
        if self.rules.bans_key(&event.author) {
            return Err(Refusal::new(Prefix::Blocked, "this key is banned"));
        }
        if event.kind == AUTH {
            let words = "this kind of event is for AUTH, and is not published";
            return Err(Refusal::invalid(words));
        }
        if is_repost(event.kind) && event.holds_protected() {
            let words = "this repost holds an event that only its author may publish";
            return Err(Refusal::new(Prefix::Blocked, words));
        }
        if class(event.kind) != Class::Addressable {
            return Ok(());
        }
        // It is written into the log, once for each topic.
        match event.coordinate() {
            None => Err(Refusal::invalid("missing d")),
            Some(of) if of.d.len() > D_LIMIT => Err(Refusal::invalid(format!(
                "d is longer than {D_LIMIT} bytes"
            ))),
            Some(of) if of.d.contains('\0') => Err(Refusal::invalid("d has a NUL")),
            Some(_) => Ok(()),
        }
    }

    /// The topics that `event` belongs to.
    pub(crate) fn topics_of(&self, event: &Event) -> Result<Vec<String>, Refusal> {
        let mut topics = event.topics();
        topics.retain(|topic| self.is_topic(topic));
        let most = self.limits.topics_per_event;
        if topics.len() > most {
            let words = format!("the event has more than {most} topics");
            return Err(Refusal::invalid(words));
        }
        if topics.is_empty() {
            return match self.topics.mode {
                TopicMode::Required => Err(Refusal::invalid("missing topic")),
                TopicMode::Default => {
                    let topics = vec![self.topics.default.clone()];
                    self.enabled(&topics)?;
                    Ok(topics)
                }
            };
        }
        self.enabled(&topics)?;
        Ok(topics)
    }

    /// The topics that `filters` are about.
    pub(crate) fn topics_for(&self, filters: &[Filter]) -> Result<Vec<String>, Refusal> {
        let mut topics = Vec::new();
        for filter in filters {
            let mut named = filter.topics().unwrap_or_default();
            named.retain(|topic| self.is_topic(topic));
            if named.is_empty() && self.topics.mode == TopicMode::Required {
                return Err(Refusal::invalid("missing topic"));
            }
            let question = filter.search.as_deref();
            if question.is_some_and(|text| text.len() > QUESTION) {
                let words = format!("search is longer than {QUESTION} bytes");
                return Err(Refusal::invalid(words));
            }
            if question.is_some_and(|text| Query::of(text, None).is_none()) {
                return Err(Refusal::invalid("search has no words"));
            }
            for topic in named {
                if !topics.contains(&topic) {
                    topics.push(topic);
                }
            }
        }
        self.enabled(&topics)?;
        Ok(topics)
    }

    fn enabled(&self, topics: &[String]) -> Result<(), Refusal> {
        match topics.iter().find(|topic| self.rules.is_disabled(topic)) {
            Some(topic) => Err(Refusal::new(
                Prefix::Restricted,
                format!("the topic {topic} is disabled"),
            )),
            None => Ok(()),
        }
    }

    fn is_topic(&self, topic: &str) -> bool {
        is_topic(&self.topics, topic)
    }
}

/// Whether this, in lower case, is the name of a topic.
pub(crate) fn is_topic(topics: &Topics, topic: &str) -> bool {
    let Some(id) = topic.strip_prefix(&topics.namespace) else {
        return false;
    };
    let fits = match topics.ids {
        TopicIds::Any => !id.is_empty(),
        TopicIds::Hex64 => id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit()),
    };
    fits && topic.len() <= TOPIC_LIMIT && !topic.contains(char::is_control)
}
