//! What makes two requests the same: method, path and canonical body.
//!
//! A client that sends its request again may order the fields of its JSON otherwise, or space
//! it otherwise; it is still the same request. Everything else makes another one.

use std::fmt;

use aws_lc_rs::digest::{Context, SHA256};
use serde::de::IgnoredAny;

use super::request::frame;

/// SHA-256 of a request. Two requests with the same hash are the same request.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestHash([u8; 32]);

impl RequestHash {
    /// The hash of a request: its method, its path with the query, and its body.
    ///
    /// A body that is a JSON object or array counts without its spaces, with the keys of
    /// every object sorted and each string in one spelling; numbers count as they are
    /// written, because 1 and 1.0, or two long numbers that a float can't tell apart, may
    /// mean different things to the handler. Any other body counts byte for byte.
    #[must_use]
    pub fn of(method: &str, path: &str, body: &[u8]) -> Self {
        let canonical = canonical(body);
        let (kind, body) = match &canonical {
            Some(canonical) => ("json", canonical.as_slice()),
            None => ("raw", body),
        };
        let mut digest = Context::new(&SHA256);
        for part in [method.as_bytes(), path.as_bytes(), kind.as_bytes(), body] {
            frame(&mut digest, part);
        }
        let mut hash = [0; 32];
        hash.iter_mut()
            .zip(digest.finish().as_ref())
            .for_each(|(to, from)| *to = *from);
        Self(hash)
    }

    /// A hash that was made elsewhere, for requests that have another shape than HTTP's.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for RequestHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestHash(")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

/// The one spelling of a JSON object or array; nothing for any other body.
fn canonical(body: &[u8]) -> Option<Vec<u8>> {
    let text = str::from_utf8(body).ok()?;
    if !text.trim_start().starts_with(['{', '[']) {
        return None;
    }
    // Checked first, which also bounds how deep it nests: the scanner only has to find its
    // way through text that is JSON.
    serde_json::from_str::<IgnoredAny>(text).ok()?;
    let mut out = Vec::with_capacity(body.len());
    Scanner { rest: text }.value(&mut out)?;
    Some(out)
}

/// Walks over valid JSON. A step returns nothing for what the parser let pass and no string
/// can hold (half a surrogate pair): such a body counts byte for byte.
struct Scanner<'a> {
    rest: &'a str,
}

impl<'a> Scanner<'a> {
    fn value(&mut self, out: &mut Vec<u8>) -> Option<()> {
        match self.peek()? {
            b'{' => self.object(out),
            b'[' => self.array(out),
            b'"' => self.string(out).map(drop),
            _ => {
                let end = |c: char| matches!(c, ',' | ']' | '}') || c.is_ascii_whitespace();
                let length = self.rest.find(end).unwrap_or(self.rest.len());
                out.extend_from_slice(self.take(length)?.as_bytes());
                Some(())
            }
        }
    }

    fn object(&mut self, out: &mut Vec<u8>) -> Option<()> {
        let mut fields = Vec::new();
        self.take(1)?;
        while self.peek()? != b'}' {
            let mut field = Vec::new();
            let name = self.string(&mut field)?;
            self.peek()?;
            self.take(1)?; // The colon.
            field.push(b':');
            self.value(&mut field)?;
            fields.push((name, field));
            self.comma()?;
        }
        self.take(1)?;
        // Stable: a name that is given twice keeps its values in their order, as parsers that
        // let the last one win must see it.
        fields.sort_by(|(left, _), (right, _)| left.cmp(right));
        out.push(b'{');
        join(out, fields.iter().map(|(_, field)| field.as_slice()));
        out.push(b'}');
        Some(())
    }

    fn array(&mut self, out: &mut Vec<u8>) -> Option<()> {
        self.take(1)?;
        out.push(b'[');
        let mut first = true;
        while self.peek()? != b']' {
            if !first {
                out.push(b',');
            }
            first = false;
            self.value(out)?;
            self.comma()?;
        }
        self.take(1)?;
        out.push(b']');
        Some(())
    }

    /// Writes a string in its one spelling, and returns what it says.
    fn string(&mut self, out: &mut Vec<u8>) -> Option<String> {
        self.peek()?;
        let mut escaped = false;
        let end = self.rest.bytes().skip(1).position(|byte| {
            let ends = byte == b'"' && !escaped;
            escaped = byte == b'\\' && !escaped;
            ends
        })?;
        let text: String = serde_json::from_str(self.take(end + 2)?).ok()?;
        serde_json::to_writer(out, &text).ok()?;
        Some(text)
    }

    fn comma(&mut self) -> Option<()> {
        if self.peek()? == b',' {
            self.take(1)?;
        }
        Some(())
    }

    /// The next byte that is no space.
    fn peek(&mut self) -> Option<u8> {
        self.rest = self.rest.trim_ascii_start();
        self.rest.bytes().next()
    }

    fn take(&mut self, length: usize) -> Option<&'a str> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }
}

fn join<'a>(out: &mut Vec<u8>, parts: impl Iterator<Item = &'a [u8]>) {
    for (at, part) in parts.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled(body: &str) -> Option<String> {
        canonical(body.as_bytes()).map(|bytes| String::from_utf8(bytes).unwrap())
    }

    fn hash(body: &str) -> RequestHash {
        RequestHash::of("POST", "/", body.as_bytes())
    }

    #[test]
    fn spaces_key_order_and_escapes_make_no_difference() {
        let plain = r#"{"a":[1,{"x":null,"y":"é\"}"}],"b":true}"#;
        assert_eq!(spelled(plain).unwrap(), plain);
        for other in [
            " { \"b\" : true,\n\t\"a\" : [ 1 , {\"y\":\"\\u00e9\\u0022}\", \"x\":null} ] } \r\n",
            r#"{"\u0062":true,"a":[1,{"y":"é\"}","x":null}]}"#,
        ] {
            assert_eq!(spelled(other).unwrap(), plain);
            assert_eq!(hash(other), hash(plain));
        }
    }

    #[test]
    fn whatever_could_mean_something_else_makes_a_difference() {
        let same = hash(r#"{"a":1}"#);
        for other in [
            r#"{"a":1.0}"#,
            r#"{"a":"1"}"#,
            r#"{"a":1,"a":1}"#,
            r#"{"a":[1]}"#,
            r#"{"A":1}"#,
            r#"{"a ":1}"#,
            r#"["a",1]"#,
            r#"{"a":1"#,
            "",
        ] {
            assert_ne!(hash(other), same, "{other}");
        }
        assert_ne!(hash("[1,2]"), hash("[2,1]"));
        assert_ne!(hash(r#"{"a":1,"a":2}"#), hash(r#"{"a":2,"a":1}"#));
        let long = "[10000000000000000000000001]";
        assert_ne!(hash(long), hash("[10000000000000000000000002]"));
        assert_eq!(spelled(long).unwrap(), long);
    }

    #[test]
    fn method_path_and_query_are_part_of_the_request() {
        let hash = |method, path| RequestHash::of(method, path, b"{}");
        assert_ne!(hash("POST", "/a"), hash("PUT", "/a"));
        assert_ne!(hash("POST", "/a"), hash("POST", "/a?b"));
        assert_ne!(hash("POST", "/a"), hash("POST/", "a"));
    }

    #[test]
    fn what_is_not_json_counts_byte_for_byte() {
        let deep = "[".repeat(4000);
        for body in [
            "1.0",
            "\"a\"",
            " ",
            "{",
            "[1,]",
            "{]",
            r#"["\ud800"]"#,
            &deep,
        ] {
            assert_eq!(spelled(body), None, "{body}");
        }
        assert_eq!(canonical(b"[\"\xff\"]"), None);
        assert_ne!(hash("1"), hash(" 1"));
        // A raw body can't pass for the canonical spelling of another.
        assert_ne!(hash("{}"), RequestHash::of("POST", "/", b"\xff{}"));
    }

    #[test]
    fn empty_containers_and_nested_ones_keep_their_shape() {
        for body in [
            "{}",
            "[]",
            r#"{"":{}}"#,
            "[[],[[]],{}]",
            r#"[-1.5e+10,"\\"]"#,
        ] {
            assert_eq!(spelled(body).as_deref(), Some(body));
        }
    }
}
