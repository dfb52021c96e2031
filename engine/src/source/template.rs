//! The user's own SQL.

use std::fmt;

use super::lexer::{self, Token, TokenKind};
use crate::error::{Error, Result};

/// The placeholder of the window's first instant, and the name of its parameter.
pub const INTERVAL_START: &str = "interval_start";

/// The placeholder of the first instant after the window, and the name of its parameter.
pub const INTERVAL_END: &str = "interval_end";

/// The ClickHouse type of both bounds.
pub const BOUND_TYPE: &str = "DateTime64(6, 'UTC')";

/// A checked statement with its window as typed server-side parameters.
///
/// # Invariants
/// One `SELECT` with balanced brackets, without `;` and without a clause about the output, so that it can stand inside
/// `FROM (…)`. Literals and comments are as the user wrote them. At least one bound is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqlTemplate {
    sql: String,
}

impl SqlTemplate {
    /// Checks a statement and turns `{interval_start}` and `{interval_end}` into parameters.
    ///
    /// # Errors
    /// `Config`, with the place and the way out.
    pub fn parse(text: &str) -> Result<Self> {
        if let Some(offset) = text.find('\0') {
            return Err(fault(text, offset, "a NUL character can't be part of a query; remove it"));
        }
        let tokens = lexer::tokens(text)
            .map_err(|end| fault(text, end.offset, format_args!("the {} that starts here has no end", end.what)))?;
        let (tokens, rest) = split_statement(&tokens);
        if let Some(token) = rest.iter().find(|token| token.kind != TokenKind::Blank) {
            return Err(fault(text, token.offset, "a second statement follows the first; an export runs one SELECT"));
        }
        let code = tokens.iter().filter(|token| token.kind != TokenKind::Blank).copied().collect::<Vec<_>>();
        check_start(text, &code)?;
        let depths = check_brackets(text, &code)?;
        check_clauses(text, &code, &depths)?;
        let sql = substitute(text, tokens)?;
        Ok(Self { sql })
    }

    /// The statement, with typed parameters instead of placeholders.
    #[must_use]
    pub fn sql(&self) -> &str {
        &self.sql
    }
}

/// An error with its place in the query.
fn fault(text: &str, offset: usize, message: impl fmt::Display) -> Error {
    Error::config(format!("{} of the query: {message}", lexer::place(text, offset)))
}

/// The tokens in front of the first `;`, and those behind it.
fn split_statement<'t, 'a>(tokens: &'t [Token<'a>]) -> (&'t [Token<'a>], &'t [Token<'a>]) {
    match tokens.iter().position(|token| token.kind == TokenKind::Symbol(';')) {
        Some(index) => (&tokens[..index], &tokens[index + 1..]),
        None => (tokens, &[]),
    }
}

fn is_word(token: &Token<'_>, word: &str) -> bool {
    token.kind == TokenKind::Word && token.text.eq_ignore_ascii_case(word)
}

fn check_start(text: &str, code: &[Token<'_>]) -> Result<()> {
    let Some(first) = code.iter().find(|token| token.kind != TokenKind::Symbol('(')) else {
        return Err(Error::config("the query is empty; write a SELECT"));
    };
    if is_word(first, "SELECT") || is_word(first, "WITH") {
        return Ok(());
    }
    let start = if first.kind == TokenKind::Word { first.text } else { "this" };
    Err(fault(text, first.offset, format_args!("an export runs a SELECT; {start} is none")))
}

/// The depth of brackets at each token.
fn check_brackets(text: &str, code: &[Token<'_>]) -> Result<Vec<usize>> {
    let mut open: Vec<(char, usize)> = Vec::new();
    let mut depths = Vec::with_capacity(code.len());
    for token in code {
        let TokenKind::Symbol(symbol) = token.kind else {
            depths.push(open.len());
            continue;
        };
        match symbol {
            '(' | '[' | '{' => open.push((symbol, token.offset)),
            ')' | ']' | '}' => {
                let partner = match symbol {
                    ')' => '(',
                    ']' => '[',
                    _ => '{',
                };
                if open.pop().is_none_or(|(opening, _)| opening != partner) {
                    return Err(fault(text, token.offset, format_args!("{symbol} closes nothing")));
                }
            }
            _ => {}
        }
        depths.push(open.len());
    }
    match open.last() {
        Some((opening, offset)) => Err(fault(text, *offset, format_args!("{opening} is never closed"))),
        None => Ok(depths),
    }
}

/// Refuses the clauses about the output: the format is ours, and settings have a field of their own.
fn check_clauses(text: &str, code: &[Token<'_>], depths: &[usize]) -> Result<()> {
    for (index, token) in code.iter().enumerate() {
        if depths[index] != 0 || token.kind != TokenKind::Word {
            continue;
        }
        let next = code.get(index + 1);
        let after = code.get(index + 2);
        if is_word(token, "INTO") && next.is_some_and(|next| is_word(next, "OUTFILE")) {
            return Err(fault(text, token.offset, "INTO OUTFILE is not for an export; remove it"));
        }
        let assigns = after.is_some_and(|after| after.kind == TokenKind::Symbol('='));
        if is_word(token, "SETTINGS") && next.is_some_and(|next| next.kind == TokenKind::Word) && assigns {
            let way_out = "the query ends with SETTINGS; move them into the export's source.settings";
            return Err(fault(text, token.offset, way_out));
        }
        let names_format = next.is_some_and(|next| next.kind == TokenKind::Word);
        let ends = after.is_none_or(|after| is_word(after, "SETTINGS"));
        if is_word(token, "FORMAT") && names_format && ends && !is_name(code, index) {
            let way_out = "the query ends with FORMAT; remove it, destination.file_format decides the format";
            return Err(fault(text, token.offset, way_out));
        }
    }
    Ok(())
}

/// Whether the word at `index` stands where a name stands: `FROM format f`.
fn is_name(code: &[Token<'_>], index: usize) -> bool {
    let Some(before) = index.checked_sub(1).and_then(|before| code.get(before)) else { return false };
    ["FROM", "JOIN", "AS", "SELECT"].iter().any(|word| is_word(before, word))
        || matches!(before.kind, TokenKind::Symbol(',' | '.'))
}

/// The statement with its placeholders turned into parameters.
fn substitute(text: &str, tokens: &[Token<'_>]) -> Result<String> {
    let mut sql = String::with_capacity(text.len() + 64);
    let mut used = false;
    let mut index = 0;
    while let Some(token) = tokens.get(index) {
        let placeholder = if token.kind == TokenKind::Symbol('{') { placeholder(&tokens[index..]) } else { None };
        let Some(placeholder) = placeholder else {
            sql.push_str(token.text);
            index += 1;
            continue;
        };
        if let Some(refusal) = placeholder.refusal() {
            return Err(fault(text, token.offset, refusal));
        }
        sql.push_str(&parameter(placeholder.name, BOUND_TYPE));
        used = true;
        index += placeholder.tokens;
    }
    if !used {
        return Err(Error::config(
            "the query uses neither {interval_start} nor {interval_end}, so every interval would export the same rows; \
             add a condition such as `timestamp >= {interval_start} AND timestamp < {interval_end}`",
        ));
    }
    sql.truncate(sql.trim_end().len());
    Ok(sql)
}

/// A typed server-side parameter, as a query refers to it.
pub(crate) fn parameter(name: &str, clickhouse_type: &str) -> String {
    format!("{{{name}:{clickhouse_type}}}")
}

struct Placeholder<'a> {
    name: &'a str,
    is_typed: bool,
    /// From `{` to `}`, for an untyped one.
    tokens: usize,
}

impl Placeholder<'_> {
    fn refusal(&self) -> Option<String> {
        let name = self.name;
        let is_known = [INTERVAL_START, INTERVAL_END].contains(&name);
        if self.is_typed && is_known {
            Some(format!("write {{{name}}} without a type; it always is {BOUND_TYPE}"))
        } else if self.is_typed {
            Some(format!(
                "the parameter {{{name}:…}} has no value; an export knows {{interval_start}} and {{interval_end}}"
            ))
        } else if !is_known {
            Some(format!("unknown placeholder {{{name}}}; an export knows {{interval_start}} and {{interval_end}}"))
        } else {
            None
        }
    }
}

/// The placeholder that starts with this `{`; a map literal, which starts with a string, is none.
fn placeholder<'a>(tokens: &[Token<'a>]) -> Option<Placeholder<'a>> {
    let mut code = tokens.iter().enumerate().skip(1).filter(|(_, token)| token.kind != TokenKind::Blank);
    let (_, name) = code.next()?;
    if !matches!(name.kind, TokenKind::Word | TokenKind::QuotedName) {
        return None;
    }
    let (end, next) = code.next()?;
    match next.kind {
        TokenKind::Symbol('}') => Some(Placeholder { name: name.text, is_typed: false, tokens: end + 1 }),
        TokenKind::Symbol(':') => Some(Placeholder { name: name.text, is_typed: true, tokens: 0 }),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
