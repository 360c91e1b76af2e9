//! What is stored under a key, and how a request ended.

use bytes::Bytes;

use super::Error;

/// An answer as it goes over the wire: status, headers, bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    status: u16,
    headers: Vec<(String, Vec<u8>)>,
    body: Bytes,
}

/// What the work says about its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// The business decided, for or against: stored, and repeated to whoever asks again. Not
    /// with a status of 500 and above.
    Decided(Reply),
    /// Nobody decided anything (our own failure, a malformed request): rolled back and not
    /// stored, so that the same key can succeed later.
    Undecided(Reply),
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The work was done now, and committed with this answer.
    Executed(Reply),
    /// It had been done before; this is the stored answer.
    Replayed(Reply),
    /// The work did not decide, and was rolled back.
    Undecided(Reply),
}

/// What a batch finds under each of its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Opened {
    /// Nothing: do the work and store its answer.
    Fresh,
    /// The answer of an earlier request.
    Stored(Reply),
    /// An answer to another request, or another request with this key earlier in the batch.
    Conflict,
    /// The same request as the one at this index of the batch: give it the same answer, and
    /// store that once.
    Twin(usize),
    /// A request with this key still runs elsewhere. Only where nobody waits for it
    /// ([`Keys::begin_all`](super::Keys::begin_all)), as the next.
    InProgress,
    /// Something else that the request needs is locked by somebody else.
    Held,
}

impl Reply {
    /// An answer without headers.
    #[must_use]
    pub fn new(status: u16, body: impl Into<Bytes>) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: body.into(),
        }
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The headers that are kept, in their order.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_slice()))
    }

    /// The body.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// `completed` for a success, `failed` for a refusal.
    pub(super) fn kind(&self) -> &'static str {
        if self.status < 400 {
            "completed"
        } else {
            "failed"
        }
    }

    /// The status as it is stored.
    pub(super) fn code(&self) -> Result<i16, Error> {
        let code = match self.status {
            100..500 => i16::try_from(self.status).ok(),
            500..600 => {
                let why = "a failure of ours (5xx) is no decision, and not kept";
                return Err(Error::InvalidAnswer(why));
            }
            _ => None,
        };
        code.ok_or(Error::InvalidAnswer("its status is none of HTTP"))
    }

    /// The headers as they are stored: a list of pairs, so that their order stays, each byte
    /// of a value as the character of that number, which is how HTTP has always read them.
    pub(super) fn stored_headers(&self) -> Result<Vec<(&str, String)>, Error> {
        let stored = |name: &str, value: &[u8]| {
            let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
            let is_text = |byte: &u8| *byte == b'\t' || !byte.is_ascii_control();
            let is_header = is_name && value.iter().all(is_text);
            is_header.then(|| value.iter().copied().map(char::from).collect())
        };
        self.headers()
            .map(|(name, value)| Some((name, stored(name, value)?)))
            .collect::<Option<_>>()
            .ok_or(Error::InvalidAnswer("a header is none"))
    }

    /// The reverse of the above. Nothing if somebody else wrote the row.
    pub(super) fn restored(
        code: i16,
        headers: Vec<(String, String)>,
        body: Vec<u8>,
    ) -> Option<Self> {
        let bytes = |value: &str| {
            value
                .chars()
                .map(|c| u8::try_from(c).ok())
                .collect::<Option<Vec<u8>>>()
        };
        let headers = headers
            .into_iter()
            .map(|(name, value)| Some((name, bytes(&value)?)))
            .collect::<Option<_>>()?;
        Some(Self {
            status: u16::try_from(code).ok()?,
            headers,
            body: body.into(),
        })
    }
}

impl Outcome {
    /// The answer, however it came about.
    #[must_use]
    pub fn reply(&self) -> &Reply {
        match self {
            Self::Executed(reply) | Self::Replayed(reply) | Self::Undecided(reply) => reply,
        }
    }

    /// The answer, however it came about.
    #[must_use]
    pub fn into_reply(self) -> Reply {
        match self {
            Self::Executed(reply) | Self::Replayed(reply) | Self::Undecided(reply) => reply,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_that_a_header_may_carry_comes_back() {
        let value: Vec<u8> = (0..=255u8)
            .filter(|byte| *byte == b'\t' || !byte.is_ascii_control())
            .collect();
        let reply = Reply::new(201, "x").header("b", value).header("a", "1");

        let headers = reply.stored_headers().unwrap();
        let headers = headers
            .into_iter()
            .map(|(n, v)| (n.to_owned(), v))
            .collect();
        let again = Reply::restored(reply.code().unwrap(), headers, b"x".to_vec());

        assert_eq!(again, Some(reply));
    }

    #[test]
    fn what_can_not_be_an_answer_is_not_stored() {
        for reply in [
            Reply::new(200, "").header("a", "b\0c"),
            Reply::new(200, "").header("a", "b\r\nc"),
            Reply::new(200, "").header("a b", "c"),
            Reply::new(200, "").header("", "c"),
        ] {
            assert!(reply.stored_headers().is_err(), "{reply:?}");
        }
        for status in [0, 99, 1000, u16::MAX] {
            assert!(Reply::new(status, "").code().is_err(), "{status}");
        }
    }

    #[test]
    fn refusals_are_stored_as_failed() {
        assert_eq!(Reply::new(303, "").kind(), "completed");
        assert_eq!(Reply::new(409, "").kind(), "failed");
    }
}
