//! Instants as the database keeps them.

use jiff::Timestamp;

/// The one form of an instant in the database: UTC, always six digits of a second, so text order is time order.
const FORM: &str = "%Y-%m-%dT%H:%M:%S.%6fZ";

/// An instant as text.
pub(crate) fn to_text(instant: Timestamp) -> String {
    instant.strftime(FORM).to_string()
}

/// An instant from text of any RFC 3339 form.
pub(crate) fn from_text(text: &str) -> Result<Timestamp, jiff::Error> {
    text.parse()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_sorts_as_time_does() {
        let instants = ["1969-12-31T23:59:59Z", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000001Z"]
            .map(|text| text.parse::<Timestamp>().expect("an instant"));
        let texts = instants.map(to_text);
        assert!(texts.is_sorted());
        assert_eq!(texts[1], "2026-01-01T00:00:00.000000Z");
        assert_eq!(texts.map(|text| from_text(&text).expect("ours")), instants);
    }
}
