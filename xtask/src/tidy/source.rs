//! Rust source split into what runs and what is said about it, so that a check on code is not fooled by a comment or a
//! string, and a check on comments is not fooled by code.

/// One Rust file, seen three ways. `code` and `comments` have the same lines and columns (in characters) as the text.
pub(crate) struct Source {
    /// The text with comments, and the insides of string and character literals, replaced by spaces.
    pub(crate) code: String,
    /// The text with everything but comments replaced by spaces. A comment keeps its slashes.
    pub(crate) comments: String,
}

impl Source {
    /// Splits `text`. Unfinished literals and comments run to the end of the file, as rustc sees them.
    pub(crate) fn parse(text: &str) -> Self {
        let chars: Vec<char> = text.chars().collect();
        let mut split = Split { code: String::with_capacity(text.len()), comments: String::with_capacity(text.len()) };
        let mut at = 0;
        while at < chars.len() {
            let rest = &chars[at..];
            let before = at.checked_sub(1).map(|i| chars[i]);
            let (kind, len) = token(rest, before);
            for (i, &c) in rest[..len].iter().enumerate() {
                split.push(c, kind, i == 0 || i + 1 == len);
            }
            at += len;
        }
        Self { code: split.code, comments: split.comments }
    }

    /// The line, from 1, that holds byte `offset` of `code`.
    pub(crate) fn line_of(&self, offset: usize) -> usize {
        self.code[..offset].matches('\n').count() + 1
    }

    /// Byte offsets in `code` at which `word` stands, not as part of a longer identifier.
    pub(crate) fn find_all<'a>(&'a self, word: &'a str) -> impl Iterator<Item = usize> + 'a {
        self.code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
            let clear = |c: Option<char>, edge: Option<char>| !(c.is_some_and(is_word) && edge.is_some_and(is_word));
            clear(self.code[..at].chars().next_back(), word.chars().next())
                && clear(self.code[at + word.len()..].chars().next(), word.chars().next_back())
        })
    }

    /// For the byte `offset` of `code`, the header of the innermost block around it: `impl Kernel<Gemm> for Simd`.
    pub(crate) fn block_header(&self, offset: usize) -> Option<&str> {
        let mut open = Vec::new();
        let mut start = 0;
        for (at, c) in self.code[..offset].char_indices() {
            match c {
                '{' => open.push(self.code[start..at].trim()),
                '}' => drop(open.pop()),
                ';' => {}
                _ => continue,
            }
            start = at + 1;
        }
        open.pop()
    }
}

/// Whether `c` can stand in an identifier.
pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

struct Split {
    code: String,
    comments: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

impl Split {
    fn push(&mut self, c: char, kind: Kind, edge: bool) {
        // One blank per byte, so that offsets into either half are offsets into the text.
        let blank = |to: &mut String| match c {
            '\n' => to.push('\n'),
            _ => to.extend(std::iter::repeat_n(' ', c.len_utf8())),
        };
        match kind {
            Kind::Code => {
                self.code.push(c);
                blank(&mut self.comments);
            }
            Kind::Comment => {
                blank(&mut self.code);
                self.comments.push(c);
            }
            Kind::Literal => {
                if edge && c.is_ascii() {
                    self.code.push(c)
                } else {
                    blank(&mut self.code)
                }
                blank(&mut self.comments);
            }
        }
    }
}

/// What starts at `rest[0]`, and how many characters it takes.
fn token(rest: &[char], before: Option<char>) -> (Kind, usize) {
    let next = rest.get(1).copied();
    match rest[0] {
        '/' if next == Some('/') => (Kind::Comment, rest.iter().position(|&c| c == '\n').unwrap_or(rest.len())),
        '/' if next == Some('*') => (Kind::Comment, block_comment(rest)),
        '"' => (Kind::Literal, quoted(rest)),
        'r' if !before.is_some_and(|c| is_word(c) && !matches!(c, 'b' | 'c')) => {
            raw_string(rest).map_or((Kind::Code, 1), |len| (Kind::Literal, len))
        }
        '\'' => char_literal(rest).map_or((Kind::Code, 1), |len| (Kind::Literal, len)),
        _ => (Kind::Code, 1),
    }
}

fn block_comment(rest: &[char]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        match (rest[at], rest.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

fn quoted(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// `r"..."`, `r#"..."#` and so on; `None` for an identifier that starts with `r`, a raw one (`r#type`) included.
fn raw_string(rest: &[char]) -> Option<usize> {
    let hashes = rest[1..].iter().take_while(|&&c| c == '#').count();
    if rest.get(1 + hashes) != Some(&'"') {
        return None;
    }
    let body = 2 + hashes;
    let ends = |at: usize| rest[at] == '"' && rest[at + 1..].iter().take_while(|&&c| c == '#').count() >= hashes;
    Some((body..rest.len()).find(|&at| ends(at)).map_or(rest.len(), |at| at + 1 + hashes))
}

/// `'x'` or `'\u{7f}'`; `None` for a lifetime.
fn char_literal(rest: &[char]) -> Option<usize> {
    match (rest.get(1)?, rest.get(2)) {
        ('\\', _) => rest.iter().skip(3).position(|&c| c == '\'').map(|at| at + 4),
        (_, Some('\'')) => Some(3),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_not_code() {
        let cases = [
            ("let a = 1; // unsafe", "let a = 1;", "// unsafe"),
            ("a /* x /* y */ z */ b", "a  b", "/* x /* y */ z */"),
            (r#"f("unsafe \" {", b)"#, r#"f("", b)"#, ""),
            (r###"f(r#"unsafe " {"#, b)"###, r#"f(r#, b)"#, ""),
            (r###"f(br"unsafe", b)"###, r#"f(br", b)"#, ""),
            ("fn f<'a>(x: &'a str, c: char) { c == '\"' }", "fn f<'a>(x: &'a str, c: char) { c == '' }", ""),
            ("let c = '\\''; // it's", "let c = '';", "// it's"),
            ("r#type::for_each(var)", "r#type::for_each(var)", ""),
        ];
        for (text, code, comments) in cases {
            let source = Source::parse(text);
            let squeeze = |s: &str| s.split_whitespace().collect::<Vec<_>>().concat();
            assert_eq!(squeeze(&source.code), squeeze(code), "code of {text}");
            assert_eq!(squeeze(&source.comments), squeeze(comments), "comments of {text}");
            assert_eq!(source.code.len(), text.len(), "offsets of {text}");
        }
    }

    #[test]
    fn offsets_survive_wide_characters() {
        let source = Source::parse("let s = \"±µ\";\nunsafe {}");
        let at = source.find_all("unsafe").next().expect("one unsafe");
        assert_eq!((at, source.line_of(at)), (16, 2));
    }

    #[test]
    fn words_are_whole() {
        let source = Source::parse("kp_cpu::x; not_kp_cpu; kp_cpus; unsafe_code; unsafe{}");
        assert_eq!(source.find_all("kp_cpu").collect::<Vec<_>>(), [0]);
        assert_eq!(source.find_all("unsafe").count(), 1);
    }

    #[test]
    fn block_headers_are_innermost() {
        let source = Source::parse("mod a { const X: u8 = 1; impl Foo for Bar { fn f() { g(); } unsafe fn h() {} } }");
        let at = source.find_all("unsafe fn").next().expect("one unsafe fn");
        assert_eq!(source.block_header(at), Some("impl Foo for Bar"));
    }
}
