import type { CutSides, Mask } from '../../drivers/ansible/play.ts'
import { urlPasswords } from '../environments/address-passwords.ts'
import { secretsIn } from '../environments/secrets.ts'

const mark = '********'
/** Shorter values occur anywhere by chance. */
const leastCharacters = 4

/** Bounded in what they look back over: a text may be of spaces alone. */
const patterns: readonly RegExp[] = [
  /-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)/g,
  /\b(?:AKIA|ASIA)[A-Z0-9]{16}\b/g,
  /(?<=\bBearer )[\w.~+/-]{8,}=*/gi,
  urlPasswords,
  /(?<=\b(?:pass(?:word|wd|phrase)|secret|token|(?:api|access)_?key)["']?\s{0,64}[=:]\s{0,64}["']?)[^\s"',;]{4,}/gi,
]

type Span = readonly [from: number, to: number]

/** Where a value is in a text. Of a text that was cut there, a part of the value counts at its begin or end. */
const placesOf = (text: string, value: string, { before, after }: CutSides): Span[] => {
  const places: Span[] = []
  for (let at = text.indexOf(value); at !== -1; at = text.indexOf(value, at + value.length))
    places.push([at, at + value.length])
  const longest = Math.min(text.length, value.length)
  let [rest, begin] = [before === true ? longest : 0, after === true ? longest : 0]
  while (rest > 0 && !value.endsWith(text.slice(0, rest))) rest--
  while (begin > 0 && !value.startsWith(text.slice(-begin))) begin--
  return [...places, [0, rest], [text.length - begin, text.length]]
}

/** The text with a mark in place of each span; spans that overlap have one mark. */
const marked = (text: string, spans: readonly Span[]): string => {
  let [shown, done] = ['', 0]
  for (const [from, to] of spans.toSorted((a, b) => a[0] - b[0])) {
    if (to <= done) continue
    if (from >= done) shown += text.slice(done, from) + mark
    done = to
  }
  return shown + text.slice(done)
}

/** The places of all characters that are no line breaks. */
const charactersOf = (text: string): number[] => {
  const places: number[] = []
  for (let at = 0; at < text.length; at++) if (text[at] !== '\n') places.push(at)
  return places
}

const escapes: Readonly<Record<string, string>> = { '\\': '\\\\', '\n': '\\n', '\r': '\\r', '\t': '\\t' }

const hexForm = (letter: string, code: number, digits: number): string =>
  `\\${letter}${code.toString(16).padStart(digits, '0')}`

/** A text as Python shows it within quotes (`repr`). */
const pythonForm = (text: string): string => {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'"
  return text.replaceAll(/[\\'"\p{C}]|(?! )\p{Z}/gu, (one) => {
    if (one === "'" || one === '"') return one === quote ? `\\${one}` : one
    const code = one.codePointAt(0) ?? 0
    const hex =
      code < 0x1_00 ? hexForm('x', code, 2) : code < 0x1_00_00 ? hexForm('u', code, 4) : hexForm('U', code, 8)
    return escapes[one] ?? hex
  })
}

/** How Ansible may print a value: as it is, and within what it prints as JSON or as Python. */
const formsOf = (value: string): string[] => {
  const json = JSON.stringify(value).slice(1, -1)
  const ascii = json.replaceAll(/[\u007f-\uffff]/g, (one) => hexForm('u', one.charCodeAt(0), 4))
  return [...new Set([value.replaceAll('\n', ''), json, ascii, pythonForm(value)])]
}

/**
 * Masks secrets in the text of a playbook's run: the values of variables whose names say that they
 * are secret, and what has the form of a secret. Ansible wraps its warnings, so a secret is found with
 * line breaks in it, too.
 */
export const maskOf = (variables: unknown): Mask => {
  const values = [...secretsIn(variables).values()]
    // What a program prints comes without the spaces at its ends.
    .flatMap((value) => [String(value), String(value).trim()])
    .filter((value) => value.replaceAll('\n', '').length >= leastCharacters)
    .flatMap(formsOf)
  return (text, cut = {}) => {
    let shown = text
    if (values.length > 0) {
      const [plain, places] = [text.replaceAll('\n', ''), charactersOf(text)]
      const spans = values
        .flatMap((value) => placesOf(plain, value, cut))
        .filter(([from, to]) => from < to)
        .map(([from, to]): Span => [places[from]!, places[to - 1]! + 1])
      shown = marked(text, spans)
    }
    for (const pattern of patterns) shown = shown.replace(pattern, mark)
    return shown
  }
}
