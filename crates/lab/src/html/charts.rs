//! Charts as SVG, coloured by the page's style so that light and dark both work. Words are HTML beside the drawings, so
//! that they stay readable on a phone.

use std::fmt::Write as _;

use super::escape;
use crate::{
    report::{Better, Row},
    verdict::interval,
};

/// The lowest and the highest.
pub(super) fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
}

/// From numbers to places between 0 and 100.
enum Scale {
    Linear { high: f64 },
    Log { low: f64, high: f64 },
}

impl Scale {
    /// From zero, unless small ones would vanish.
    fn over(values: impl Iterator<Item = f64>) -> Option<Self> {
        let (low, high) = range(values.filter(|value| value.is_finite() && *value > 0.0));
        if !high.is_finite() || high <= 0.0 {
            return None;
        }
        // A log scale begins below the smallest, so that its bar is seen.
        Some(if high > 30.0 * low { Self::Log { low: low / 2.0, high } } else { Self::Linear { high } })
    }

    fn at(&self, value: f64) -> f64 {
        let share = match self {
            Self::Linear { high } => value / high,
            Self::Log { low, high } => (value.max(*low) / low).ln() / (high / low).ln(),
        };
        100.0 * share.clamp(0.0, 1.0)
    }

    fn word(&self) -> &'static str {
        match self {
            Self::Linear { .. } => "",
            Self::Log { .. } => ", log scale",
        }
    }
}

fn class(row: &Row) -> &'static str {
    match row.side() {
        _ if row.is_ours() => "row ours",
        "limit" | "copy" | "read" => "row limit",
        _ => "row",
    }
}

/// Cases in the order they appear, each with its rows that have numbers.
fn cases(rows: &[Row]) -> Vec<(&str, Vec<&Row>)> {
    let mut cases: Vec<(&str, Vec<&Row>)> = Vec::new();
    for row in rows.iter().filter(|row| row.p50.is_some_and(|p50| p50 > 0.0)) {
        match cases.iter_mut().find(|(case, others)| *case == row.case() && others[0].unit == row.unit) {
            Some((_, others)) => others.push(row),
            None => cases.push((row.case(), vec![row])),
        }
    }
    cases
}

fn side_name(row: &Row) -> String {
    escape(row.side())
}

/// The medians of all sides, a card for each case; cases that nobody else has share one.
pub(super) fn bars(out: &mut String, rows: &[Row]) {
    let (compared, alone): (Vec<_>, Vec<_>) = cases(rows).into_iter().partition(|(_, rows)| rows.len() > 1);
    for (case, rows) in compared {
        let better = if rows[0].better == Better::Lower { "less is better" } else { "more is better" };
        let title = if case.is_empty() { "Median".to_owned() } else { format!("Median, {}", escape(case)) };
        let labels = rows.iter().map(|row| side_name(row)).collect::<Vec<_>>();
        bar_card(out, &title, better, &rows, &labels);
    }
    let mut alone: Vec<&Row> = alone.into_iter().flat_map(|(_, rows)| rows).collect();
    while !alone.is_empty() {
        let (unit, better) = (alone[0].unit.clone(), alone[0].better);
        let (same, others): (Vec<_>, Vec<_>) =
            alone.into_iter().partition(|row| row.unit == unit && row.better == better);
        let word = if better == Better::Lower { "less is better" } else { "more is better" };
        let labels = same.iter().map(|row| escape(&row.id)).collect::<Vec<_>>();
        bar_card(out, "Median", word, &same, &labels);
        alone = others;
    }
}

fn bar_card(out: &mut String, title: &str, better: &str, rows: &[&Row], labels: &[String]) {
    let ends = rows.iter().flat_map(|row| {
        let (low, high) = interval(&row.rounds).unzip();
        [row.p50, low, high].into_iter().flatten()
    });
    let Some(scale) = Scale::over(ends) else { return };
    let limit = rows.iter().find(|row| class(row) == "row limit").and_then(|row| row.p50);
    let unit = rate(rows[0]);
    let _ = write!(
        out,
        "<div class=\"card\"><h3>{title} <small class=\"soft\">{unit}{better}{}</small></h3>",
        scale.word()
    );
    for (row, label) in rows.iter().zip(labels) {
        let Some(p50) = row.p50 else { continue };
        let _ = write!(
            out,
            "<div class=\"{}\"><span>{label}</span><svg viewBox=\"0 0 100 10\" preserveAspectRatio=\"none\" \
             aria-hidden=\"true\"><rect class=\"bar\" y=\"1\" height=\"8\" width=\"{:.2}\"/>",
            class(row),
            scale.at(p50).max(0.3)
        );
        if let Some((low, high)) = interval(&row.rounds) {
            let (low, high) = (scale.at(low), scale.at(high));
            let _ =
                write!(out, "<path class=\"thin\" d=\"M{low:.2} 5H{high:.2}M{low:.2} 2.5V7.5M{high:.2} 2.5V7.5\"/>");
        }
        if let Some(limit) = limit {
            let at = scale.at(limit);
            let _ = write!(out, "<line class=\"edge\" x1=\"{at:.2}\" x2=\"{at:.2}\" y1=\"0\" y2=\"10\"/>");
        }
        let _ = write!(out, "</svg><span>{}</span></div>", brief(p50, row));
    }
    if limit.is_some() {
        out.push_str(
            "<div class=\"key\"><span><i style=\"background:var(--limit)\"></i>what the machine allows</span></div>",
        );
    }
    out.push_str("</div>");
}

/// How the samples are spread, a card for each case.
pub(super) fn spreads(out: &mut String, rows: &[Row]) {
    for (case, rows) in cases(rows) {
        let rows: Vec<_> = rows.into_iter().filter(|row| row.spread.len() > 20 && row.samples >= 20).collect();
        if rows.is_empty() || !rows.iter().any(|row| row.is_ours()) {
            continue;
        }
        let ends =
            rows.iter().flat_map(|row| [Some(row.spread[1]), Some(row.spread[19]), row.p99].into_iter().flatten());
        let (low, high) = range(ends.filter(|end| *end > 0.0));
        if high <= low {
            continue;
        }
        let scale = Scale::Log { low: low * 0.9, high };
        let name = if case.is_empty() { String::new() } else { format!(", {}", escape(case)) };
        let _ = write!(
            out,
            "<div class=\"card\"><h3>Samples{name} <small class=\"soft\">{}log scale</small></h3>",
            rate(rows[0])
        );
        for row in rows {
            let at = |part: usize| scale.at(row.spread[part]);
            let (a, b) = (at(5).min(at(15)), at(5).max(at(15)));
            let p99 = row.p99.map_or(0.0, |p99| scale.at(p99));
            let _ = write!(
                out,
                "<div class=\"{}\"><span>{}</span><svg viewBox=\"0 0 100 10\" preserveAspectRatio=\"none\" \
                 aria-hidden=\"true\"><path class=\"thin\" d=\"M{:.2} 5H{:.2}\"/><rect class=\"box\" x=\"{a:.2}\" y=\"1.5\" \
                 width=\"{:.2}\" height=\"7\"/><line class=\"mark\" x1=\"{m:.2}\" x2=\"{m:.2}\" y1=\"0.5\" y2=\"9.5\"/>\
                 <line class=\"rare\" x1=\"{p99:.2}\" x2=\"{p99:.2}\" y1=\"2\" y2=\"8\"/></svg><span>{}</span></div>",
                class(row),
                side_name(row),
                at(1),
                at(19),
                (b - a).max(0.3),
                row.p99.map_or_else(String::new, |p99| brief(p99, row)),
                m = at(10),
            );
        }
        out.push_str(
            "<div class=\"key\"><span><i style=\"background:var(--bad)\"></i>p99, at the right</span></div></div>",
        );
    }
}

/// A size in a case's name: `1024`, `16Ki`, `1Mi`, `512x512x512`.
fn size(case: &str) -> Option<f64> {
    let digits = case.len() - case.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let number: f64 = case.get(..digits)?.parse().ok()?;
    let factor = match &case[digits..] {
        "" => 1.0,
        "Ki" | "KiB" => 1024.0,
        "Mi" | "MiB" => 1024.0 * 1024.0,
        square if square.split('x').all(|part| part.is_empty() || part == &case[..digits]) => 1.0,
        _ => return None,
    };
    Some(number * factor)
}

/// Colours of further lines of ours.
const OWN: [&str; 3] = ["#5aa9e6", "#2bb3c0", "#6c7ff2"];
/// Colours of lines that are not ours.
const COLOURS: [&str; 7] = ["#d9822b", "#8f5bd6", "#2ba08b", "#c2508c", "#7a8b2e", "#4f7fa8", "#a8643c"];
/// A chart's measures.
const WIDE: f64 = 420.0;
const HIGH: f64 = 230.0;
const LEFT: f64 = 62.0;
const BELOW: f64 = 26.0;

/// Lines over size, where the cases are sizes.
pub(super) fn over_size(out: &mut String, rows: &[Row]) {
    let mut sides: Vec<(&str, Vec<(f64, f64)>)> = Vec::new();
    for row in rows {
        let (Some(size), Some(p50)) = (size(row.case()), row.p50.filter(|p50| *p50 > 0.0)) else { continue };
        match sides.iter_mut().find(|(side, _)| *side == row.side()) {
            Some((_, points)) => points.push((size, p50)),
            None => sides.push((row.side(), vec![(size, p50)])),
        }
    }
    sides.retain(|(_, points)| points.len() > 1);
    let Some(row) = rows.iter().find(|row| size(row.case()).is_some() && row.p50.is_some()) else { return };
    let xs = range(sides.iter().flat_map(|(_, points)| points.iter().map(|point| point.0)));
    let ys = range(sides.iter().flat_map(|(_, points)| points.iter().map(|point| point.1)));
    if sides.is_empty() || xs.1 <= xs.0 {
        return;
    }
    let x = |value: f64| LEFT + (WIDE - LEFT - 8.0) * (value / xs.0).ln() / (xs.1 / xs.0).ln();
    let spread = (ys.1 / ys.0).ln().max(0.1);
    let y = |value: f64| 10.0 + (HIGH - BELOW - 20.0) * (1.0 - (value / ys.0).ln() / spread);
    let _ = write!(
        out,
        "<div class=\"card\"><h3>Over size <small class=\"soft\">{}median, both log scale</small></h3>\
         <svg class=\"chart\" viewBox=\"0 0 {WIDE} {HIGH}\" role=\"img\" aria-label=\"median over size\">",
        rate(row)
    );
    for n in 0..4 {
        let value = ys.0 * (spread * f64::from(n) / 3.0).exp();
        let at = y(value);
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{WIDE}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            at + 4.0,
            brief(value, row)
        );
    }
    let mut sizes: Vec<f64> = sides.iter().flat_map(|(_, points)| points.iter().map(|point| point.0)).collect();
    sizes.sort_unstable_by(f64::total_cmp);
    sizes.dedup();
    for (n, value) in sizes.iter().enumerate() {
        let anchor = if n == 0 {
            "start"
        } else if n + 1 == sizes.len() {
            "end"
        } else {
            "middle"
        };
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
            x(*value),
            HIGH - 6.0,
            round_size(*value)
        );
    }
    let mut key = String::new();
    let (mut own, mut others) = (0, 0);
    for (side, points) in &mut sides {
        points.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let ours = side.starts_with("millrace");
        let colour = match *side {
            "millrace" => "var(--ours)",
            _ if ours => {
                own += 1;
                OWN[(own - 1) % OWN.len()]
            }
            "limit" | "copy" | "read" => "var(--limit)",
            _ => {
                others += 1;
                COLOURS[(others - 1) % COLOURS.len()]
            }
        };
        let mut path = String::new();
        for (n, (size, value)) in points.iter().enumerate() {
            let _ = write!(path, "{}{:.1} {:.1}", if n == 0 { 'M' } else { 'L' }, x(*size), y(*value));
        }
        let class = if ours { "ours" } else { "" };
        let _ = write!(out, "<path class=\"{class}\" d=\"{path}\" style=\"stroke:{colour}\"/>");
        let _ = write!(key, "<span><i style=\"background:{colour}\"></i>{}</span>", escape(side));
    }
    let _ = write!(out, "</svg><div class=\"key\">{key}</div></div>");
}

/// A number without the unit of a rate, which is long and in the title of its card, but for the letter that scales it.
fn brief(value: f64, row: &Row) -> String {
    let text = row.shown(value);
    match text.split_once(' ') {
        Some((number, unit)) if row.better == Better::Higher && row.unit.len() > 1 => {
            let letter = unit.chars().next().filter(|c| matches!(c, 'G' | 'M' | 'k') && value >= 1e3);
            escape(&format!("{number} {}", letter.map(String::from).unwrap_or_default()))
        }
        _ => escape(&text),
    }
}

/// The unit of a rate, for a title.
fn rate(row: &Row) -> String {
    if row.better == Better::Higher && row.unit.len() > 1 { format!("{}, ", escape(&row.unit)) } else { String::new() }
}

fn round_size(size: f64) -> String {
    match size {
        s if s >= 1_048_576.0 && s % 1_048_576.0 == 0.0 => format!("{}Mi", s / 1_048_576.0),
        s if s >= 1024.0 && s % 1024.0 == 0.0 => format!("{}Ki", s / 1024.0),
        s => s.to_string(),
    }
}

/// A line of medians, the newest at the right.
pub(super) fn spark(medians: &[f64]) -> String {
    let (low, high) = range(medians.iter().copied());
    let step = 100.0 / (medians.len().max(2) - 1) as f64;
    let mut path = String::new();
    for (n, median) in medians.iter().enumerate() {
        let y = if high > low { 18.0 - 16.0 * (median - low) / (high - low) } else { 10.0 };
        let _ = write!(path, "{}{:.1} {y:.1}", if n == 0 { 'M' } else { 'L' }, n as f64 * step);
    }
    format!(
        "<svg class=\"spark\" viewBox=\"0 0 100 20\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"medians\"><path d=\"{path}\"/></svg>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_found_in_names() {
        let found = ["10", "16Ki", "1Mi", "512x512x512", "write-1KiB", "", "1x2x3", "10-fold"].map(size);
        let expected = [Some(10.0), Some(16384.0), Some(1_048_576.0), Some(512.0), None, None, None, None];
        assert_eq!(found, expected);
    }

    #[test]
    fn scales_keep_order_and_stay_inside() {
        for values in [[1.0, 2.0, 3.0], [1.0, 100.0, 10_000.0]] {
            let scale = Scale::over(values.into_iter()).unwrap();
            let places = values.map(|value| scale.at(value));
            assert!(
                places[0] > 0.0 && places[0] < places[1] && places[1] < places[2] && places[2] <= 100.0,
                "{places:?}"
            );
        }
        assert!(Scale::over([0.0, f64::NAN].into_iter()).is_none());
    }
}
