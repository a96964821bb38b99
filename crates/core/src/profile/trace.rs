//! A trace in the JSON format of chrome://tracing, which Perfetto reads as well: complete events ("X") on a thread for
//! every stream, and a counter ("C") of the memory in use.

use std::{
    fmt::{self, Write as _},
    io::{self, Write},
};

use super::{Profile, Span};

/// Text inside of quotes.
struct Json<'a>(&'a str);

impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                c if (c as u32) < 0x20 => write!(f, "\\u{:04x}", c as u32)?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Nanoseconds as microseconds, which is what the format counts in, with all of their digits.
struct Micros(u64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

/// The rows that a stream's spans are drawn in: within one they may contain each other, but not overlap otherwise.
#[derive(Default)]
struct Rows(Vec<Vec<u64>>);

impl Rows {
    /// The row of a span. They come ordered by start, and of those that start together the longest first.
    fn place(&mut self, span: &Span) -> usize {
        for (n, ends) in self.0.iter_mut().enumerate() {
            while ends.last().is_some_and(|&end| end <= span.start) {
                ends.pop();
            }
            if ends.last().is_none_or(|&end| span.end <= end) {
                ends.push(span.end);
                return n;
            }
        }
        self.0.push(vec![span.end]);
        self.0.len() - 1
    }
}

pub(super) fn write(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    let mut spans: Vec<_> = profile.spans.iter().collect();
    spans.sort_by_key(|span| (span.stream, span.start, std::cmp::Reverse(span.end)));
    let mut placed = Vec::with_capacity(spans.len());
    let mut threads = Vec::new();
    for spans in spans.chunk_by(|a, b| a.stream == b.stream) {
        let (mut rows, stream) = (Rows::default(), spans[0].stream);
        let first = threads.len();
        placed.extend(spans.iter().map(|span| (first + rows.place(span) + 1, *span)));
        threads.extend((0..rows.0.len()).map(|row| match row {
            0 => format!("stream {stream}"),
            row => format!("stream {stream}, row {}", row + 1),
        }));
    }
    placed.sort_by_key(|(_, span)| (span.start, std::cmp::Reverse(span.end)));
    writeln!(out, "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"dropped\":{}}},\"traceEvents\":[", profile.dropped)?;
    let process = format!("{} {}", profile.device, profile.name);
    write!(out, r#"{{"ph":"M","pid":1,"name":"process_name","args":{{"name":"{}"}}}}"#, Json(&process))?;
    for (n, name) in threads.iter().enumerate() {
        let tid = n + 1;
        write!(out, ",\n{{\"ph\":\"M\",\"pid\":1,\"tid\":{tid},\"name\":\"thread_name\",")?;
        write!(out, "\"args\":{{\"name\":\"{}\"}}}}", Json(name))?;
        write!(out, ",\n{{\"ph\":\"M\",\"pid\":1,\"tid\":{tid},\"name\":\"thread_sort_index\",")?;
        write!(out, "\"args\":{{\"sort_index\":{tid}}}}}")?;
    }
    let mut memory = profile.memory.iter().peekable();
    for (tid, span) in placed {
        while let Some(sample) = memory.next_if(|sample| sample.at <= span.start) {
            counter(out, sample.at, sample.in_use)?;
        }
        let (ts, dur, name) = (Micros(span.start), Micros(span.time()), Json(profile.op(span)));
        write!(out, ",\n{{\"ph\":\"X\",\"pid\":1,\"tid\":{tid},\"ts\":{ts},\"dur\":{dur},\"name\":\"{name}\",")?;
        write!(out, "\"cat\":\"{}\",\"args\":{{", if span.failed { "failed" } else { "command" })?;
        let (queued, clock) = (Micros(span.queued()), span.clock.name());
        write!(out, "\"queued_us\":{queued},\"bytes\":{},\"clock\":\"{clock}\"}}}}", span.bytes)?;
    }
    for sample in memory {
        counter(out, sample.at, sample.in_use)?;
    }
    out.write_all(b"\n]}\n")
}

fn counter(out: &mut dyn Write, at: u64, in_use: u64) -> io::Result<()> {
    let ts = Micros(at);
    write!(out, ",\n{{\"ph\":\"C\",\"pid\":1,\"ts\":{ts},\"name\":\"memory\",\"args\":{{\"in use\":{in_use}}}}}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::tests::{example, span};

    #[test]
    fn spans_that_overlap_get_rows_of_their_own() {
        let mut rows = Rows::default();
        let placed = [(0, 10), (2, 5), (5, 10), (8, 12), (10, 11), (12, 13)]
            .map(|(start, end)| rows.place(&span(0, 0, start, end)));
        assert_eq!(placed, [0, 0, 0, 1, 0, 0]);
    }

    #[test]
    fn a_trace_is_json_with_every_span_in_order_of_time() {
        let mut text = Vec::new();
        let profile = example();
        write(&profile, &mut text).unwrap();
        let trace: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let of = |kind: &str| events.iter().filter(|event| event["ph"] == kind).collect::<Vec<_>>();
        assert_eq!((of("X").len(), of("C").len()), (profile.spans.len(), profile.memory.len()));
        let times: Vec<_> = events.iter().filter_map(|event| event["ts"].as_f64()).collect();
        assert!(times.is_sorted(), "{times:?}");
        assert!(of("X").iter().any(|event| event["name"] == "<\"kernel\">\n\\"));
        assert_eq!(events[0]["args"]["name"], "cpu \"the\" <processor> & co");
        assert!(of("M").iter().any(|event| event["args"]["name"] == "stream 3"));
        // Within a thread spans contain each other or are apart.
        for a in of("X") {
            for b in of("X").into_iter().filter(|b| a["tid"] == b["tid"]) {
                let range = |event: &serde_json::Value| {
                    let start = event["ts"].as_f64().unwrap();
                    (start, start + event["dur"].as_f64().unwrap())
                };
                let ((a, a_end), (b, b_end)) = (range(a), range(b));
                assert!(!(a < b && b < a_end && a_end < b_end), "({a}, {a_end}) overlaps ({b}, {b_end})");
            }
        }
    }
}
