import { secretsIn } from '../environments/secrets.ts'

const mark = '********'
/** Shorter values occur anywhere by chance. */
const leastCharacters = 4

/** Bounded in what they look back over: a text may be of spaces alone. */
const patterns: readonly RegExp[] = [
  /-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)/g,
  /\b(?:AKIA|ASIA)[A-Z0-9]{16}\b/g,
  /(?<=\bBearer )[\w.~+/-]{8,}=*/gi,
  /(?<=:\/\/[^\s/:@]{1,255}:)[^\s/@]{1,255}(?=@)/g,
  /(?<=\b(?:pass(?:word|wd|phrase)|secret|token|(?:api|access)_?key)["']?\s{0,64}[=:]\s{0,64}["']?)[^\s"',;]{4,}/gi,
]

/**
 * Masks secrets in the text of a playbook's run: the values of variables whose names say that they
 * are secret, and what has the form of a secret.
 */
export const maskOf = (variables: unknown): ((text: string) => string) => {
  const values = [...secretsIn(variables).values()]
    .map(String)
    .filter((value) => value.length >= leastCharacters)
    .toSorted((a, b) => b.length - a.length)
  return (text) => {
    let shown = text
    for (const value of values) shown = shown.replaceAll(value, mark)
    for (const pattern of patterns) shown = shown.replace(pattern, mark)
    return shown
  }
}
