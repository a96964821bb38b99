//! Text that may stand in a page.

use crate::report::Row;

/// Text as HTML shows it, whatever is in it.
///
/// ```
/// assert_eq!(millrace_lab::html::escape("<a href='x'>&"), "&lt;a href=&#39;x&#39;&gt;&amp;");
/// ```
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// A number of a row as people say it, escaped.
pub(super) fn shown(n: f64, row: &Row) -> String {
    escape(&row.shown(n))
}

/// The day and minute of a moment, in seconds since 1970, as UTC.
///
/// ```
/// assert_eq!(millrace_lab::html::day(951_782_400), "29 February 2000, 00:00 UTC");
/// assert_eq!(millrace_lab::html::day(0), "1 January 1970, 00:00 UTC");
/// ```
pub fn day(seconds: u64) -> String {
    const MONTHS: [(&str, u64); 12] = [
        ("January", 31),
        ("February", 28),
        ("March", 31),
        ("April", 30),
        ("May", 31),
        ("June", 30),
        ("July", 31),
        ("August", 31),
        ("September", 30),
        ("October", 31),
        ("November", 30),
        ("December", 31),
    ];
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut days, mut year) = (seconds / 86_400, 1970);
    // Nobody keeps a run of ten thousand years from now; a date that is nonsense is not worth the time.
    while year < 9999 && days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    for (month, length) in MONTHS {
        let length = length + u64::from(month == "February" && is_leap(year));
        if days < length {
            let (hours, minutes) = (seconds / 3600 % 24, seconds / 60 % 60);
            return format!("{} {month} {year}, {hours:02}:{minutes:02} UTC", days + 1);
        }
        days -= length;
    }
    "a day that is not known".to_owned()
}
