//! A duplicate is only as good as what it is a duplicate of.
//!
//! A broker remembers ids for a while, and takes what comes again for a duplicate, also when the
//! message itself is gone by then: deleted, or lost. Such an acknowledgement would be the end of
//! the message. So the few that are acknowledged as duplicates are looked up.

use std::collections::HashMap;
use std::sync::Arc;

use uuid::Uuid;

use super::{Position, PublishError, Streams};

/// The results of publishing messages with these `ids`, where a duplicate of a message that is
/// not there any more is none.
pub(super) async fn confirm(
    streams: &impl Streams,
    ids: &[Uuid],
    mut results: Vec<Result<Position, PublishError>>,
) -> Vec<Result<Position, PublishError>> {
    let mut duplicates: HashMap<Arc<str>, Vec<(usize, u64)>> = HashMap::new();
    for (index, result) in results.iter().enumerate() {
        if let Ok(at) = result
            && at.duplicate
        {
            let known = duplicates.entry(Arc::clone(&at.stream)).or_default();
            known.push((index, at.sequence));
        }
    }
    for (stream, known) in duplicates {
        let sequences: Vec<u64> = known.iter().map(|(_, sequence)| *sequence).collect();
        let held = streams.ids_at(&stream, &sequences).await;
        for (n, (index, _)) in known.iter().enumerate() {
            let is_there = held
                .as_ref()
                .is_ok_and(|held| held.get(n).copied().flatten() == ids.get(*index).copied());
            if let (false, Some(result)) = (is_there, results.get_mut(*index)) {
                *result = Err(PublishError::Unreachable(
                    "taken for a duplicate of a message that is not there".into(),
                ));
            }
        }
    }
    results
}
