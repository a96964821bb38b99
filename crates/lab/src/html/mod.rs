//! One self-contained page about a run: no network, no scripts, light and dark.
//!
//! Everything that comes from outside (names of runs, machines, drivers, errors) goes through [`escape`].

mod charts;
mod text;

use std::fmt::Write as _;

use text::shown;
pub use text::{day, escape};

use crate::{
    history::History,
    measure::ENOUGH,
    report::{Report, Row},
    seeds,
    suites::Suite,
    verdict::{Change, Verdict},
};

/// What a page is made of.
#[derive(Debug)]
pub struct Page<'a> {
    /// The run.
    pub report: &'a Report,
    /// What it is called, if it was kept.
    pub name: Option<&'a str>,
    /// The run it is compared with.
    pub baseline: Option<(&'a str, &'a Report)>,
    /// Runs of before, the oldest first.
    pub history: Vec<(String, Report)>,
}

/// Runs of before that are shown, at most.
const REMEMBERED: usize = 24;

/// Runs that were kept on a machine like this report's, without one of this name, the oldest first.
pub fn earlier(history: &History, report: &Report, name: Option<&str>) -> Vec<(String, Report)> {
    let names = history.names().into_iter().filter(|known| Some(known.as_str()) != name);
    let loaded = names.filter_map(|name| history.load(&name).ok().map(|run| (name, run)));
    let alike = |run: &Report| crate::history::differs(&report.machine, &run.machine).is_none();
    let mut runs: Vec<_> = loaded.filter(|(_, run)| alike(run)).take(REMEMBERED).collect();
    runs.sort_by_key(|(_, run)| run.machine.date);
    runs
}

impl Page<'_> {
    /// The page.
    ///
    /// ```
    /// use millrace_lab::{html::Page, machine::Machine, report::{Report, SCHEMA}};
    /// let machine = Machine { cpu: "<b>fast</b>".to_owned(), ..Machine::now() };
    /// let report = Report { schema: SCHEMA, machine, rows: Vec::new() };
    /// let page = Page { report: &report, name: None, baseline: None, history: Vec::new() }.to_html();
    /// assert!(page.starts_with("<!doctype html>") && page.contains("&lt;b&gt;fast"));
    /// assert!(!page.contains("<b>fast"));
    /// ```
    pub fn to_html(&self) -> String {
        let mut out = String::with_capacity(1 << 18);
        let title = self.name.map_or_else(|| "Millrace: a run".to_owned(), |name| format!("Millrace: {name}"));
        let _ = write!(
            out,
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
             <title>{title}</title><style>{style}</style></head><body><main><h1>{title}</h1>",
            title = escape(&title),
            style = include_str!("style.css"),
        );
        self.head(&mut out);
        self.summary(&mut out);
        for (place, rows) in self.groups().into_iter().enumerate() {
            self.group(&mut out, place, rows);
        }
        self.how(&mut out);
        out.push_str("</main></body></html>\n");
        out
    }

    /// Rows of a group, group by group.
    fn groups(&self) -> Vec<&[Row]> {
        self.report.groups().collect()
    }

    fn head(&self, out: &mut String) {
        let machine = &self.report.machine;
        let commit = machine.commit.as_deref().map(|commit| format!(", commit {}", commit.get(..10).unwrap_or(commit)));
        let length = if machine.quick { "a quick run, too short to judge by" } else { "a full run" };
        let _ = write!(
            out,
            "<p class=\"soft\">{}, {length}, version {}{}</p>",
            day(machine.date),
            escape(&machine.version),
            escape(&commit.unwrap_or_default())
        );
        let noise = machine.noise();
        if !noise.is_empty() {
            let so = if machine.is_noisy() { "too noisy to judge by" } else { "not quiet" };
            let seen = escape(&noise.join(", "));
            let _ = write!(out, "<p class=\"card warn\">The machine was {so}: {seen}.</p>");
        }
    }

    fn summary(&self, out: &mut String) {
        let ours = || self.report.rows.iter().filter(|row| row.is_ours());
        let (met, judged) =
            (ours().filter(|row| row.met == Some(true)).count(), ours().filter(|row| row.met.is_some()).count());
        let outcomes = seeds::outcomes(self.report);
        let reached = outcomes.iter().filter(|outcome| outcome.met).count();
        let failed = self.report.rows.iter().filter(|row| row.is_error()).count();
        out.push_str("<div class=\"tiles\">");
        let tile = |out: &mut String, big: String, small: &str| {
            let _ = write!(out, "<div class=\"tile\"><b>{big}</b><span class=\"soft\">{small}</span></div>");
        };
        tile(out, format!("{met} of {judged}"), "targets met");
        if !outcomes.is_empty() {
            tile(out, format!("{reached} of {}", outcomes.len()), "promised figures reached");
        }
        tile(out, format!("{}", self.groups().len()), "groups");
        if failed > 0 {
            tile(out, format!("<span class=\"bad\">{failed}</span>"), "did not finish");
        }
        let verdicts = self.verdicts();
        if self.baseline.is_some() {
            let count = |change| verdicts.iter().filter(|(_, verdict)| verdict.change == change).count();
            let (same, open) = (count(Change::Same), count(Change::Undecided));
            let small = format!("slower, {} faster, {same} the same, {open} undecided", count(Change::Faster));
            tile(out, count(Change::Slower).to_string(), &small);
        }
        out.push_str("</div><nav>");
        for (place, rows) in self.groups().into_iter().enumerate() {
            let _ = write!(out, "<a href=\"#g{place}\">{}</a>", escape(&rows[0].group));
        }
        out.push_str("</nav>");
        self.missed(out);
        self.compared(out, &verdicts);
        promised(out, &outcomes);
    }

    fn missed(&self, out: &mut String) {
        let missed: Vec<_> = self.report.missed().collect();
        if missed.is_empty() {
            return;
        }
        let _ = write!(out, "<details><summary>{} missed</summary><ul>", missed.len());
        for row in missed {
            let target = escape(row.target.as_deref().unwrap_or_default());
            let _ = write!(out, "<li><b>{}</b> {}: {target}</li>", escape(&row.group), escape(&row.id));
        }
        out.push_str("</ul></details>");
    }

    fn verdicts(&self) -> Vec<(&Row, Verdict)> {
        self.baseline.map(|(_, before)| self.report.since(before).collect()).unwrap_or_default()
    }

    fn compared(&self, out: &mut String, verdicts: &[(&Row, Verdict)]) {
        let Some((name, before)) = self.baseline else { return };
        let _ = write!(
            out,
            "<details><summary>Against {}, of {}</summary><div class=\"scroll\"><table><tr><th>row</th>\
             <th class=\"text\">verdict</th><th>effect</th><th>between</th></tr>",
            escape(name),
            day(before.machine.date)
        );
        // What changed for sure comes first.
        let order = |change| match change {
            Change::Slower => 0,
            Change::Faster => 1,
            Change::Undecided => 2,
            Change::Same => 3,
        };
        let mut verdicts: Vec<_> = verdicts.iter().collect();
        verdicts.sort_by_key(|(_, verdict)| order(verdict.change));
        for (row, verdict) in verdicts {
            let class = match verdict.change {
                Change::Faster => "good",
                Change::Slower => "bad",
                Change::Same => "soft",
                Change::Undecided => "warned",
            };
            let (low, high) = verdict.interval;
            let _ = write!(
                out,
                "<tr><td>{} {}</td><td class=\"text {class}\">{}</td><td>{:+.1}%</td><td>{:+.1}% to {:+.1}%</td></tr>",
                escape(&row.group),
                escape(&row.id),
                verdict.change.name(),
                100.0 * verdict.effect,
                100.0 * low,
                100.0 * high
            );
        }
        out.push_str("</table></div><p class=\"soft\">More is slower.</p></details>");
    }

    fn group(&self, out: &mut String, place: usize, rows: &[Row]) {
        let name = &rows[0].group;
        let _ = write!(
            out,
            "<h2 id=\"g{place}\">{} <small class=\"soft\">{}</small></h2><p class=\"soft\">{}</p>",
            escape(name),
            escape(&rows[0].suite),
            escape(about(&rows[0]))
        );
        if rows.iter().any(|row| row.interrupted) {
            out.push_str("<p class=\"card warn\">Interrupted: not all rounds were measured, so nothing is judged.</p>");
        }
        out.push_str("<div class=\"cards\">");
        charts::over_size(out, rows);
        charts::bars(out, rows);
        charts::spreads(out, rows);
        out.push_str("</div>");
        self.remembered(out, rows);
        out.push_str(
            "<details><summary>All numbers</summary><div class=\"scroll\"><table><tr><th>side</th><th>device</th>",
        );
        out.push_str("<th>p50</th><th>p99</th><th>p99.9</th><th>mean</th><th>samples</th><th>of limit</th>");
        out.push_str("<th class=\"text\">held to</th></tr>");
        for row in rows {
            numbers(out, row, rows);
        }
        out.push_str("</table></div></details>");
    }

    /// Our medians in runs of before and now.
    fn remembered(&self, out: &mut String, rows: &[Row]) {
        let median = |run: &Report, row: &Row| {
            let before = run.rows.iter().find(|other| other.is_same_as(row) && !other.interrupted);
            before.and_then(|row| row.p50)
        };
        let series = |row: &Row| -> Vec<f64> {
            let before = self.history.iter().filter_map(|(_, run)| median(run, row));
            before.chain(row.p50).collect()
        };
        let ours: Vec<_> = rows.iter().filter(|row| row.is_ours()).map(|row| (row, series(row))).collect();
        let ours: Vec<_> = ours.into_iter().filter(|(_, medians)| medians.len() > 1).collect();
        if ours.is_empty() {
            return;
        }
        let _ = write!(
            out,
            "<details><summary>Over {} runs</summary><div class=\"scroll\"><table><tr><th>row</th>\
             <th class=\"text\">median, oldest to newest</th><th>lowest</th><th>highest</th><th>now</th></tr>",
            ours.iter().map(|(_, medians)| medians.len()).max().unwrap_or(0)
        );
        for (row, medians) in ours {
            let (low, high) = charts::range(medians.iter().copied());
            let _ = write!(
                out,
                "<tr><td>{}</td><td class=\"text\">{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                escape(&row.id),
                charts::spark(&medians),
                shown(low, row),
                shown(high, row),
                row.p50.map_or_else(String::new, |p50| shown(p50, row))
            );
        }
        out.push_str("</table></div></details>");
    }

    fn how(&self, out: &mut String) {
        let machine = &self.report.machine;
        out.push_str("<h2>The machine</h2><div class=\"card scroll\"><table>");
        let line = |out: &mut String, name: &str, value: String| {
            let _ = write!(out, "<tr><td>{name}</td><td class=\"text\">{}</td></tr>", escape(&value));
        };
        line(out, "processor", format!("{}, {} cores", machine.cpu, machine.cores));
        line(out, "memory", format!("{:.1} GiB", machine.memory as f64 / f64::from(1 << 30)));
        line(out, "system", format!("{} {}", machine.os, machine.kernel.as_deref().unwrap_or_default()));
        if let Some(driver) = &machine.driver {
            line(out, "GPU driver", driver.clone());
        }
        let share = |share: f64| format!("{:.1}% of all cores", 100.0 * share);
        line(
            out,
            "load when it began",
            machine.load.map_or_else(|| "not known".to_owned(), |load| format!("{load:.2}")),
        );
        line(out, "other programs", machine.others.map_or_else(|| "not known".to_owned(), share));
        line(out, "given to others by the host", machine.steal.map_or_else(|| "not known".to_owned(), share));
        if let Some([low, high]) = machine.frequency {
            line(out, "clock of the cores", format!("{low:.0} to {high:.0} MHz"));
        }
        if !machine.devices.is_empty() {
            line(out, "devices", machine.devices.join(", "));
        }
        let _ = write!(
            out,
            "</table></div><h2>How the numbers were made</h2><div class=\"card\"><p>Every group ran in a process of its \
             own with a fresh device. Within it the sides took turns, round by round, so that whatever else the machine \
             did fell on all of them; every side did equal work and its results were checked. A bar is the median of all \
             samples, the line on it where the median round of another run would be, 96 times of 100 (drawn again \
             and again from the rounds of this one; a round that was held up has few samples and counts as much as any). A box holds half of the samples, its line nine tenths; the dark mark is the \
             median, the red one what 99 of 100 reach. What 999 of 1000 reach is said where there are at least {ENOUGH} \
             samples. <i>Of limit</i> compares with what the machine itself can do, measured in the same run: 1 is as \
             good, less is worse.</p></div>"
        );
    }
}

/// What the group of a row measures.
fn about(row: &Row) -> &'static str {
    let suites = Suite::ALL.into_iter().filter(|suite| row.suite.is_empty() || suite.name() == row.suite);
    let mut groups = suites.flat_map(Suite::groups);
    groups.find(|group| group.name == row.group).map_or("", |group| group.about)
}

fn numbers(out: &mut String, row: &Row, rows: &[Row]) {
    let number = |n: Option<f64>| n.map_or_else(|| "–".to_owned(), |n| shown(n, row));
    let rare = match row.p999 {
        Some(rare) if row.is_latency() => shown(rare, row),
        None if row.is_latency() => "<span class=\"soft\">too few</span>".to_owned(),
        _ => String::new(),
    };
    let (class, mark) = match row.met {
        Some(true) => ("good", "met: "),
        Some(false) => ("bad", "missed: "),
        None => ("soft", ""),
    };
    let _ = write!(
        out,
        "<tr class=\"{}\"><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{rare}</td><td>{}</td><td>{}</td><td>{}</td>\
         <td class=\"text {class}\">{mark}{}</td></tr>",
        if row.is_ours() { "ours" } else { "" },
        escape(&row.id),
        escape(&row.device),
        number(row.p50),
        number(row.p99),
        number(row.mean),
        row.samples,
        row.of_limit(rows).map_or_else(String::new, |share| format!("{share:.2}")),
        escape(row.target.as_deref().unwrap_or_default()),
    );
}

fn promised(out: &mut String, outcomes: &[seeds::Outcome]) {
    if outcomes.is_empty() {
        return;
    }
    out.push_str("<details><summary>Promised figures</summary><div class=\"scroll\"><table><tr><th>what</th>");
    out.push_str("<th class=\"text\">row</th><th>figure</th><th>measured</th><th></th></tr>");
    for outcome in outcomes {
        let (class, said) = if outcome.met { ("good", "reached") } else { ("bad", "not reached") };
        let value = outcome.value.map_or_else(|| "–".to_owned(), |value| format!("{value:.2} {}", outcome.target.unit));
        let _ = write!(
            out,
            "<tr><td>{}</td><td class=\"text\">{} {}</td><td>{}</td><td>{}</td><td class=\"{class}\">{said}</td></tr>",
            escape(&outcome.target.what),
            escape(&outcome.target.group),
            escape(&outcome.id),
            escape(&outcome.target.bound()),
            escape(&value)
        );
    }
    out.push_str("</table></div></details>");
}
