//! The lexical grammar of ClickHouse's SQL, as far as finding the ends of literals and comments needs it.
//!
//! Owns what is code and what is text. Does not own any meaning: that is the server's.

use std::fmt;

/// A piece of a statement. The pieces of a statement, in order, are the statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) kind: TokenKind,
    pub(crate) text: &'a str,
    /// Where the text starts. Unit: bytes.
    pub(crate) offset: usize,
}

/// What a piece is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// Blanks or a comment.
    Blank,
    /// A string, in quotes or as a heredoc.
    Literal,
    /// An identifier in double quotes or backticks.
    QuotedName,
    /// Letters, digits, `_` and `$`.
    Word,
    /// Any other character.
    Symbol(char),
}

/// A literal or comment without an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unterminated {
    pub(crate) what: &'static str,
    pub(crate) offset: usize,
}

/// Cuts a statement into tokens.
///
/// # Source
/// `src/Parsers/Lexer.cpp` of ClickHouse; tried against 26.9.
///
/// # Errors
/// A literal, quoted name or block comment that doesn't end.
pub(crate) fn tokens(text: &str) -> Result<Vec<Token<'_>>, Unterminated> {
    let mut found = Vec::new();
    let mut offset = 0;
    while let Some(first) = text[offset..].chars().next() {
        let (kind, length) = measure(&text[offset..], first).map_err(|what| Unterminated { what, offset })?;
        found.push(Token { kind, text: &text[offset..offset + length], offset });
        offset += length;
    }
    Ok(found)
}

/// The kind and the length in bytes of the token that `rest` starts with.
fn measure(rest: &str, first: char) -> Result<(TokenKind, usize), &'static str> {
    let line = || rest.find('\n').unwrap_or(rest.len());
    Ok(match first {
        blank if blank.is_whitespace() => {
            (TokenKind::Blank, rest.find(|other: char| !other.is_whitespace()).unwrap_or(rest.len()))
        }
        '\'' => (TokenKind::Literal, quoted(rest, '\'').ok_or("string")?),
        '"' => (TokenKind::QuotedName, quoted(rest, '"').ok_or("quoted name")?),
        '`' => (TokenKind::QuotedName, quoted(rest, '`').ok_or("quoted name")?),
        // Quotes as word processors write them are quotes to ClickHouse too, without escapes.
        '‘' => (TokenKind::Literal, rest.find('’').ok_or("string")? + '’'.len_utf8()),
        '“' => (TokenKind::QuotedName, rest.find('”').ok_or("quoted name")? + '”'.len_utf8()),
        '-' if rest.starts_with("--") => (TokenKind::Blank, line()),
        '#' if rest.starts_with("# ") || rest.starts_with("#!") => (TokenKind::Blank, line()),
        '/' if rest.starts_with("//") => (TokenKind::Blank, line()),
        '/' if rest.starts_with("/*") => (TokenKind::Blank, block_comment(rest).ok_or("comment")?),
        '$' => match heredoc(rest) {
            Some(length) => (TokenKind::Literal, length),
            None => (TokenKind::Word, word(rest)),
        },
        letter if is_word(letter) => (TokenKind::Word, word(rest)),
        symbol => (TokenKind::Symbol(symbol), symbol.len_utf8()),
    })
}

fn is_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

fn word(rest: &str) -> usize {
    rest.find(|other: char| !is_word(other) && other != '$').unwrap_or(rest.len())
}

/// The length of a quoted text. A backslash escapes any character, and a doubled quote is a quote; since the text of
/// such a doubling simply goes on as the next quoted text, only the backslash needs care.
fn quoted(rest: &str, quote: char) -> Option<usize> {
    let mut characters = rest.char_indices().skip(1);
    while let Some((index, character)) = characters.next() {
        if character == '\\' {
            characters.next();
        } else if character == quote {
            let end = index + quote.len_utf8();
            if !rest[end..].starts_with(quote) {
                return Some(end);
            }
            characters.next();
        }
    }
    None
}

fn block_comment(rest: &str) -> Option<usize> {
    let mut depth = 0_u32;
    let mut offset = 0;
    loop {
        let next = offset + rest[offset..].find(['/', '*'])?;
        if rest[next..].starts_with("/*") {
            depth += 1;
            offset = next + 2;
        } else if rest[next..].starts_with("*/") {
            depth -= 1;
            offset = next + 2;
            if depth == 0 {
                return Some(offset);
            }
        } else {
            offset = next + 1;
        }
    }
}

/// The length of `$tag$…$tag$`, with a tag of word characters or none.
fn heredoc(rest: &str) -> Option<usize> {
    let tag = 1 + rest[1..].find(|other: char| !is_word(other))?;
    let mark = rest.get(..=tag).filter(|mark| mark.ends_with('$'))?;
    let end = rest[mark.len()..].find(mark)?;
    Some(mark.len() + end + mark.len())
}

/// A place in a text as people count: lines and columns from 1.
pub(crate) fn place(text: &str, offset: usize) -> impl fmt::Display {
    let before = &text[..offset];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or(before).chars().count() + 1;
    fmt::from_fn(move |formatter| write!(formatter, "line {line}, column {column}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<(TokenKind, &str)> {
        let found = tokens(text).expect("every text ends");
        found.iter().filter(|token| token.text != " ").map(|token| (token.kind, token.text)).collect()
    }

    #[test]
    fn finds_the_ends_of_literals() {
        for literal in [r"'a''b'", r"'a\'b'", r"'\\'", "$$x'y$$", "$ab$ $a$ $ab$", "$1$x$1$", "‘a‘b’", "''", "'a\nb'"]
        {
            assert_eq!(kinds(&format!("{literal} x")), [(TokenKind::Literal, literal), (TokenKind::Word, "x")]);
        }
        for name in [r#""a""b""#, r"`a\`b`", "`a``b`", "“a”"] {
            assert_eq!(kinds(&format!("{name} x")), [(TokenKind::QuotedName, name), (TokenKind::Word, "x")]);
        }
    }

    #[test]
    fn finds_the_ends_of_comments() {
        for comment in ["-- a 'b", "--1", "# a", "#! a", "// a", "/* a /* b */ c */", "/**/", "/*/ */"] {
            assert_eq!(
                kinds(&format!("1 {comment}\n2")),
                [(TokenKind::Word, "1"), (TokenKind::Blank, comment), (TokenKind::Blank, "\n"), (TokenKind::Word, "2")]
            );
        }
    }

    #[test]
    fn dollars_within_words_are_no_heredocs() {
        assert_eq!(kinds("a$b$"), [(TokenKind::Word, "a$b$")]);
        assert_eq!(kinds("$a"), [(TokenKind::Word, "$a")]);
        assert_eq!(kinds("#c"), [(TokenKind::Symbol('#'), "#"), (TokenKind::Word, "c")]);
    }

    #[test]
    fn says_what_has_no_end_and_where() {
        for (text, what, offset) in [
            ("SELECT 'a", "string", 7),
            (r"'a\'", "string", 0),
            ("`a", "quoted name", 0),
            ("1 /* /* */", "comment", 2),
            ("‘a'", "string", 0),
        ] {
            assert_eq!(tokens(text), Err(Unterminated { what, offset }), "{text}");
        }
        assert_eq!(place("a\nbä 'c", 6).to_string(), "line 2, column 4");
    }
}
