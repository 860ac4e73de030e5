//! Small integer expressions for custom attention masks: `q>=k&&q-k<128||k<4`.

use crate::text::{Unread, number};
use std::{fmt, str::FromStr};

/// An expression over the query's position `q`, the key's position `k`, the head `h` and the sequence `b`.
///
/// Whole numbers; `||` `&&` `== != < <= > >=` `+ -` `* / %` `! -` and parentheses, loosest first, as in C.
/// Comparisons and logic give 0 or 1; both sides are always evaluated. Arithmetic wraps at 64 bits; `/` and
/// `%` by 0 give 0. At most 48 bytes of code, a number counting 5, anything else 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Expr {
    /// Postfix code; a number is `NUMBER` and its four bytes, low first.
    code: [u8; MAX_CODE],
    len: u8,
}

/// The values of an expression's variables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vars {
    /// Position of the query among the keys.
    pub q: i64,
    /// Position of the key.
    pub k: i64,
    /// Query head.
    pub h: i64,
    /// Sequence of the batch.
    pub b: i64,
}

const MAX_CODE: usize = 48;
/// Deepest nesting; also bounds the evaluation stack, since each level holds at most one pending operand.
const MAX_DEPTH: u32 = 24;
const NUMBER: u8 = 0;
const VARS: [u8; 4] = *b"qkhb";
const NOT: u8 = b'!';
const NEG: u8 = b'~';

/// Binary operators: spelling, opcode, binding strength.
const BINARY: [(&str, u8, u8); 13] = [
    ("||", b'|', 1),
    ("&&", b'&', 2),
    ("==", b'=', 3),
    ("!=", b'#', 3),
    ("<=", b'l', 4),
    (">=", b'g', 4),
    ("<", b'<', 4),
    (">", b'>', 4),
    ("+", b'+', 5),
    ("-", b'-', 5),
    ("*", b'*', 6),
    ("/", b'/', 6),
    ("%", b'%', 6),
];
const UNARY_BINDING: u8 = 7;

impl Expr {
    /// The value for `vars`.
    pub fn eval(&self, vars: Vars) -> i64 {
        let mut stack = [0_i64; MAX_CODE];
        let mut top = 0;
        for step in self.steps() {
            match step {
                Step::Push(value) => {
                    stack[top] = value;
                    top += 1;
                }
                Step::Var(v) => {
                    stack[top] = [vars.q, vars.k, vars.h, vars.b][v];
                    top += 1;
                }
                Step::Unary(NOT) => stack[top - 1] = (stack[top - 1] == 0).into(),
                Step::Unary(_) => stack[top - 1] = stack[top - 1].wrapping_neg(),
                Step::Binary(op) => {
                    top -= 1;
                    stack[top - 1] = binary(op, stack[top - 1], stack[top]);
                }
            }
        }
        stack[0]
    }

    /// The postfix code, for kernels that translate it: a number is 0 and its four bytes, low first; `q k h b` are
    /// variables; `!` and `~` (negate) take one operand; every other byte is a binary operator:
    /// `| & = # l g < > + - * / %` for `|| && == != <= >= < > + - * / %`.
    pub fn code(&self) -> &[u8] {
        &self.code[..self.len.into()]
    }

    fn steps(&self) -> impl Iterator<Item = Step> {
        let mut rest = self.code();
        std::iter::from_fn(move || {
            let (&op, tail) = rest.split_first()?;
            rest = tail;
            Some(match op {
                NUMBER => {
                    let (bytes, tail) = rest.split_first_chunk::<4>().expect("the parser writes four bytes");
                    rest = tail;
                    Step::Push(u32::from_le_bytes(*bytes).into())
                }
                NOT | NEG => Step::Unary(op),
                _ => match VARS.iter().position(|&v| v == op) {
                    Some(v) => Step::Var(v),
                    None => Step::Binary(op),
                },
            })
        })
    }
}

enum Step {
    Push(i64),
    Var(usize),
    Unary(u8),
    Binary(u8),
}

fn binary(op: u8, a: i64, b: i64) -> i64 {
    match op {
        b'|' => (a != 0 || b != 0).into(),
        b'&' => (a != 0 && b != 0).into(),
        b'=' => (a == b).into(),
        b'#' => (a != b).into(),
        b'l' => (a <= b).into(),
        b'g' => (a >= b).into(),
        b'<' => (a < b).into(),
        b'>' => (a > b).into(),
        b'+' => a.wrapping_add(b),
        b'-' => a.wrapping_sub(b),
        b'*' => a.wrapping_mul(b),
        b'/' if b != 0 => a.wrapping_div(b),
        b'%' if b != 0 => a.wrapping_rem(b),
        _ => 0,
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Text and binding strength of each pending operand; parentheses only where the strength needs them.
        let mut stack: Vec<(String, u8)> = Vec::new();
        let wrap = |(text, binding): (String, u8), need: u8| if binding < need { format!("({text})") } else { text };
        let full = "the parser leaves one operand per push";
        for step in self.steps() {
            let next = match step {
                Step::Push(value) => (value.to_string(), u8::MAX),
                Step::Var(v) => (char::from(VARS[v]).to_string(), u8::MAX),
                Step::Unary(op) => {
                    let operand = wrap(stack.pop().expect(full), UNARY_BINDING);
                    (format!("{}{operand}", if op == NOT { '!' } else { '-' }), UNARY_BINDING)
                }
                Step::Binary(op) => {
                    let &(text, _, binding) = BINARY.iter().find(|(_, code, _)| *code == op).expect("a known operator");
                    let right = wrap(stack.pop().expect(full), binding + 1);
                    let left = wrap(stack.pop().expect(full), binding);
                    (format!("{left}{text}{right}"), binding)
                }
            };
            stack.push(next);
        }
        f.write_str(&stack.pop().expect(full).0)
    }
}

impl fmt::Debug for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Expr {
    type Err = Unread;
    /// # Errors
    /// [`Unread`] with the form expected.
    fn from_str(s: &str) -> Result<Self, Unread> {
        const BAD: Unread = Unread { expected: "an expression of q, k, h, b and whole numbers" };
        let mut parser = Parser { rest: s, out: Self { code: [0; MAX_CODE], len: 0 }, depth: 0 };
        parser.level(1).map_err(|()| BAD)?;
        if parser.rest.is_empty() { Ok(parser.out) } else { Err(BAD) }
    }
}

struct Parser<'s> {
    rest: &'s str,
    out: Expr,
    depth: u32,
}

impl Parser<'_> {
    fn emit(&mut self, bytes: &[u8]) -> Result<(), ()> {
        let at = usize::from(self.out.len);
        self.out.code.get_mut(at..at + bytes.len()).ok_or(())?.copy_from_slice(bytes);
        self.out.len += bytes.len() as u8;
        Ok(())
    }

    fn take(&mut self, text: &str) -> bool {
        self.rest.strip_prefix(text).map(|rest| self.rest = rest).is_some()
    }

    /// Operators that bind at least as strongly as `least`.
    fn level(&mut self, least: u8) -> Result<(), ()> {
        self.operand()?;
        // `BINARY` spells `<=` before `<`, so the first prefix that matches is the longest.
        while let Some(&(text, code, binding)) = BINARY.iter().find(|(text, ..)| self.rest.starts_with(text)) {
            if binding < least {
                break;
            }
            self.take(text);
            self.level(binding + 1)?;
            self.emit(&[code])?;
        }
        Ok(())
    }

    fn operand(&mut self) -> Result<(), ()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(());
        }
        if self.take("(") {
            self.level(1)?;
            if !self.take(")") {
                return Err(());
            }
        } else if self.take("!") {
            self.operand()?;
            self.emit(&[NOT])?;
        } else if self.take("-") {
            self.operand()?;
            self.emit(&[NEG])?;
        } else if let Some(var) = VARS.iter().find(|&&v| self.rest.as_bytes().first() == Some(&v)) {
            self.rest = &self.rest[1..];
            self.emit(&[*var])?;
        } else {
            let digits = self.rest.bytes().take_while(u8::is_ascii_digit).count();
            let value: u32 = number(&self.rest[..digits]).ok_or(())?;
            self.rest = &self.rest[digits..];
            self.emit(&[NUMBER])?;
            self.emit(&value.to_le_bytes())?;
        }
        self.depth -= 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str, q: i64, k: i64) -> i64 {
        text.parse::<Expr>().expect(text).eval(Vars { q, k, h: 3, b: 1 })
    }

    #[test]
    fn precedence_is_that_of_c() {
        assert_eq!(value("1+2*3", 0, 0), 7);
        assert_eq!(value("(1+2)*3", 0, 0), 9);
        assert_eq!(value("10-4-3", 0, 0), 3);
        assert_eq!(value("q>=k&&q-k<128||k<4", 1000, 2), 1);
        assert_eq!(value("q>=k&&q-k<128||k<4", 1000, 5), 0);
        assert_eq!(value("!(q==k)", 4, 4), 0);
        assert_eq!(value("-q+h*b", 4, 4), -1);
        assert_eq!(value("q/0+q%0", 4, 4), 0);
    }

    #[test]
    fn text_round_trips_with_few_parentheses() {
        for (text, shown) in [
            ("(q)>=(k)", "q>=k"),
            ("(1+2)*3", "(1+2)*3"),
            ("1+(2*3)", "1+2*3"),
            ("q-(k-1)", "q-(k-1)"),
            ("!(q<k)&&-q==h%2", "!(q<k)&&-q==h%2"),
        ] {
            let expr: Expr = text.parse().expect(text);
            assert_eq!(expr.to_string(), shown);
            assert_eq!(shown.parse(), Ok(expr));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let deep = format!("{}q{}", "(".repeat(100), ")".repeat(100));
        let long = vec!["q"; 40].join("+");
        for text in ["", "q+", "+q", "q k", "x", "4294967296", "q=k", "q&k", "()", "q)", &deep, &long] {
            assert!(text.parse::<Expr>().is_err(), "{text}");
        }
    }
}
