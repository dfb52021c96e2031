//! Names and texts as ClickHouse's SQL writes them.

/// A name in backticks, whatever it contains.
pub(crate) fn quoted_name(name: &str) -> String {
    format!("`{}`", escaped(name, '`'))
}

/// A list of texts as the value of an `Array(String)` parameter.
pub(crate) fn text_list(texts: &[String]) -> String {
    let quoted = texts.iter().map(|text| format!("'{}'", escaped(text, '\''))).collect::<Vec<_>>();
    format!("[{}]", quoted.join(","))
}

fn escaped(text: &str, quote: char) -> String {
    let mut written = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' => written.push_str("\\n"),
            '\t' => written.push_str("\\t"),
            '\r' => written.push_str("\\r"),
            '\0' => written.push_str("\\0"),
            '\\' => written.push_str("\\\\"),
            other => {
                if other == quote {
                    written.push('\\');
                }
                written.push(other);
            }
        }
    }
    written
}

/// The name that a possibly quoted name stands for.
pub(crate) fn unquoted_name(name: &str) -> String {
    let quote = name.chars().next().filter(|first| ['`', '"'].contains(first));
    let Some(inner) = quote.and_then(|quote| name.strip_prefix(quote)?.strip_suffix(quote)) else {
        return name.to_owned();
    };
    let mut plain = String::with_capacity(inner.len());
    let mut characters = inner.chars();
    while let Some(character) = characters.next() {
        plain.push(match character {
            '\\' => match characters.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some('r') => '\r',
                Some('0') => '\0',
                Some('b') => '\u{8}',
                Some('f') => '\u{c}',
                Some(other) => other,
                None => '\\',
            },
            doubled if Some(doubled) == quote => {
                characters.next();
                doubled
            }
            other => other,
        });
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_quoting() {
        for name in ["a", "a b", "a`b", "a\\b", "ä\n", "a.b", "`", "\\", "'", "\""] {
            assert_eq!(unquoted_name(&quoted_name(name)), name);
        }
        assert_eq!(unquoted_name("`a``b`"), "a`b");
        assert_eq!(unquoted_name("plain"), "plain");
        assert_eq!(unquoted_name("`"), "`");
    }

    #[test]
    fn lists_are_array_literals() {
        assert_eq!(text_list(&[]), "[]");
        assert_eq!(text_list(&["it's".to_owned(), "a\\b\t".to_owned()]), r"['it\'s','a\\b\t']");
    }
}
