//! A picture of a summary: the device, under it its streams, and under each its operations, as wide as their share of
//! the time. It needs nothing but itself, and follows the reader's choice of light or dark.

use std::fmt::{self, Write};

use super::summary::{Figures, ProfileSummary, bytes, time};

const WIDTH: f64 = 1200.0;
const ROW: f64 = 26.0;
const MARGIN: f64 = 12.0;
const TITLE: f64 = 44.0;
/// What a character is wide, about.
const LETTER: f64 = 7.3;
/// Narrower ones would not be seen, and a thousand of them make a file large.
const NARROWEST: f64 = 0.2;

/// Text between tags or inside of quotes. What XML cannot hold at all becomes a question mark.
struct Xml<'a>(&'a str);

impl fmt::Display for Xml<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '&' => f.write_str("&amp;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\t' | '\n' | '\r' => f.write_char(' ')?,
                c if (c as u32) < 0x20 || matches!(c, '\u{fffe}' | '\u{ffff}') => f.write_char('?')?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

const STYLE: &str = "\
text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#1c1b19;pointer-events:none}\
.page{fill:#faf9f7}.title{font-size:15px;font-weight:600}.note{fill:#6b675f}\
rect.box{stroke:#faf9f7;stroke-width:1}g:hover rect.box{stroke:#1c1b19}\
.device{fill:#d8d4cc}.stream{fill:#b9cbe0}\
@media(prefers-color-scheme:dark){text{fill:#eeece8}.page{fill:#171615}.note{fill:#a39e94}\
rect.box{stroke:#171615}g:hover rect.box{stroke:#eeece8}.device{fill:#3b3833}.stream{fill:#2d4560}\
.op{filter:brightness(.55) saturate(1.2)}}";

/// A warm color, always the same one for a name.
fn color(name: &str) -> String {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3) // FNV-1a
    });
    format!("hsl({}, {}%, {}%)", 10 + hash % 45, 60 + (hash >> 16) % 25, 66 + (hash >> 32) % 12)
}

/// One box, and its text as far as it fits.
fn tile(
    out: &mut String,
    (x, row, width): (f64, usize, f64),
    class: &str,
    name: &str,
    figures: &Figures,
) -> fmt::Result {
    let y = TITLE + row as f64 * ROW;
    let fill = if class == "op" { format!(" style=\"fill:{}\"", color(name)) } else { String::new() };
    let said = format!(
        "{name}: {} ({:.1}%), {} commands, mean {}, p99 {}, {}",
        time(figures.total as f64),
        100.0 * figures.share,
        figures.count,
        time(figures.mean),
        time(figures.p99 as f64),
        bytes(figures.bytes),
    );
    write!(out, "<g><title>{}</title>", Xml(&said))?;
    write!(out, "<rect class=\"box {class}\" x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"{ROW}\"{fill}/>")?;
    let letters = ((width - 8.0) / LETTER) as usize;
    if letters >= 2 {
        let long = format!("{name} {:.1}%", 100.0 * figures.share);
        let text = match (long.chars().count() <= letters, name.chars().count() <= letters) {
            (true, _) => long,
            (_, true) => name.to_owned(),
            _ => name.chars().take(letters - 1).chain(['…']).collect(),
        };
        write!(out, "<text x=\"{:.2}\" y=\"{}\">{}</text>", x + 4.0, y + 17.0, Xml(&text))?;
    }
    out.push_str("</g>\n");
    Ok(())
}

pub(super) fn draw(summary: &ProfileSummary) -> String {
    let mut out = String::new();
    let drawn = draw_into(&mut out, summary);
    debug_assert!(drawn.is_ok(), "a string takes everything");
    out
}

fn draw_into(out: &mut String, summary: &ProfileSummary) -> fmt::Result {
    let (page, height) = (WIDTH + 2.0 * MARGIN, TITLE + 3.0 * ROW + 28.0);
    write!(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {page} {height}\" ")?;
    writeln!(out, "width=\"{page}\" height=\"{height}\" role=\"img\">")?;
    writeln!(out, "<title>{}</title>\n<style>{STYLE}</style>", Xml(&format!("Profile of {}", summary.device)))?;
    writeln!(out, "<rect class=\"page\" width=\"{page}\" height=\"{height}\"/>")?;
    let (all, whole) = (&summary.all, summary.all.total.max(1) as f64);
    let title = format!("{}: {} of commands in {}", summary.device, time(all.total as f64), time(summary.time as f64));
    writeln!(out, "<text class=\"title\" x=\"{MARGIN}\" y=\"28\">{}</text>", Xml(&title))?;
    let width = |figures: &Figures| figures.total as f64 / whole * WIDTH;
    tile(out, (MARGIN, 0, WIDTH), "device", &summary.device, all)?;
    let (mut x, mut left_out) = (MARGIN, 0);
    for stream in &summary.streams {
        let wide = width(&stream.figures);
        if wide >= NARROWEST {
            tile(out, (x, 1, wide), "stream", &format!("stream {}", stream.stream), &stream.figures)?;
        }
        let mut inner = x;
        for op in &stream.ops {
            let wide = width(&op.figures);
            if wide >= NARROWEST {
                tile(out, (inner, 2, wide), "op", &op.op, &op.figures)?;
            } else {
                left_out += 1;
            }
            inner += wide;
        }
        x += wide;
    }
    let mut note = format!("{} commands; at most {} in use", all.count, bytes(summary.peak_memory));
    if left_out > 0 {
        write!(note, "; {left_out} operations are too brief to be seen")?;
    }
    if summary.in_batches > 0 {
        write!(note, "; {} commands have the time of their batch", summary.in_batches)?;
    }
    if summary.dropped > 0 {
        write!(note, "; {} more are missing", summary.dropped)?;
    }
    let y = TITLE + 3.0 * ROW + 19.0;
    writeln!(out, "<text class=\"note\" x=\"{MARGIN}\" y=\"{y}\">{}</text>\n</svg>", Xml(&note))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::tests::example;

    /// Reads tags and text, and fails on what no XML reader would take.
    fn elements(mut text: &str) -> Vec<String> {
        let (mut open, mut seen) = (Vec::new(), Vec::new());
        while let Some(start) = text.find('<') {
            let between = &text[..start];
            assert!(!between.contains('>'), "{between}");
            let entities = ["lt;", "gt;", "amp;", "quot;", "#39;"];
            assert!(between.split('&').skip(1).all(|rest| entities.iter().any(|e| rest.starts_with(e))), "{between}");
            let end = start + text[start..].find('>').expect("a tag ends");
            let tag = &text[start + 1..end];
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop().as_deref(), Some(name));
            } else {
                let name = tag.split([' ', '/']).next().expect("a name").to_owned();
                seen.push(tag.to_owned());
                if !tag.ends_with('/') {
                    open.push(name);
                }
            }
            text = &text[end + 1..];
        }
        assert!(open.is_empty(), "{open:?} are not closed");
        seen
    }

    #[test]
    fn the_picture_is_xml_and_widths_are_shares() {
        let summary = example().summary();
        let picture = draw(&summary);
        let tags = elements(&picture);
        assert!(tags[0].starts_with("svg "));
        let number = |tag: &str, name: &str| -> f64 {
            let from = tag.find(&format!(" {name}=\"")).expect("it is there") + name.len() + 3;
            tag[from..].split('"').next().expect("a value").parse().expect("a number")
        };
        let sum = |class: &str| -> f64 {
            tags.iter().filter(|tag| tag.contains(class)).map(|tag| number(tag, "width")).sum()
        };
        for class in ["box device", "box stream", "box op"] {
            assert!((sum(class) - WIDTH).abs() < 1.0, "{class}: {}", sum(class));
        }
        assert!(picture.contains("&lt;&quot;kernel&quot;&gt;") && picture.contains("prefers-color-scheme"));
    }

    #[test]
    fn nothing_is_a_picture_as_well() {
        elements(&draw(&crate::profile::Profile::default().summary()));
    }
}
