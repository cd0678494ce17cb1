import { createHash, createHmac, timingSafeEqual } from 'node:crypto'

/** A line of a `known_hosts` file (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT"). */
export interface KnownHost {
  /** The first field: patterns with commas, or `|1|salt|hash`. */
  names: string
  type: string
  /** The key as the server shows it. */
  key: Buffer
  mark?: 'revoked' | 'cert-authority'
}

export type HostKeyVerdict =
  | { verdict: 'known' }
  | { verdict: 'unknown'; authority: boolean }
  /** `expected`: fingerprints of the keys that are known for the host. */
  | { verdict: 'changed'; expected: string[] }
  | { verdict: 'revoked' }

const longestText = 1024 * 1024

/** `SHA256:…` as `ssh-keygen -l` shows it. */
export const fingerprint = (key: Buffer): string =>
  `SHA256:${createHash('sha256').update(key).digest('base64').replace(/=+$/, '')}`

/** The kind of a key in SSH's wire form, its first string; empty for bytes that are no key. */
export const keyType = (key: Buffer): string => {
  const length = key.length >= 4 ? key.readUInt32BE(0) : 0
  return length > 0 && length <= 64 && key.length >= 4 + length ? key.toString('latin1', 4, 4 + length) : ''
}

/**
 * The name of a host in `known_hosts`: lower case, with its port in brackets where that is not 22.
 */
export const knownHostsName = (host: string, port: number): string =>
  port === 22 ? host.toLowerCase() : `[${host.toLowerCase()}]:${String(port)}`

/** Reads the text of a `known_hosts` file; lines that cannot be used count as absent. */
export const parseKnownHosts = (text: string): KnownHost[] =>
  text.length > longestText
    ? []
    : text.split(/\r?\n/).flatMap((line): KnownHost[] => {
        const [, mark, names = '', type = '', base64 = ''] =
          /^(?:@([^ \t]+)[ \t]+|(?![#@]))([^ \t]+)[ \t]+([^ \t]+)[ \t]+([^ \t]+)/.exec(line.trim()) ?? []
        const key = Buffer.from(base64, 'base64')
        if (key.length === 0 || keyType(key) !== type) return []
        if (mark === undefined) return [{ names, type, key }]
        return mark === 'revoked' || mark === 'cert-authority' ? [{ names, type, key, mark }] : []
      })

const matchesPattern = (name: string, pattern: string): boolean => {
  // Greedy with one backtracking position: linear in practice, where an expression built from the
  // pattern could take for ever.
  let [at, next, star, resume] = [0, 0, -1, 0]
  while (at < name.length) {
    if (next < pattern.length && pattern[next] === '*') {
      star = next++
      resume = at
    } else if (next < pattern.length && (pattern[next] === '?' || pattern[next] === name[at])) {
      at++
      next++
    } else if (star >= 0) {
      next = star + 1
      at = ++resume
    } else return false
  }
  while (pattern[next] === '*') next++
  return next === pattern.length
}

const matchesNames = (name: string, names: string): boolean => {
  if (names.startsWith('|')) {
    const [, magic, salt, hash] = names.split('|')
    if (magic !== '1' || salt === undefined || hash === undefined) return false
    const [expected, actual] = [
      Buffer.from(hash, 'base64'),
      createHmac('sha1', Buffer.from(salt, 'base64')).update(name).digest(),
    ]
    return expected.length === actual.length && timingSafeEqual(expected, actual)
  }
  let found = false
  for (const pattern of names.toLowerCase().split(',')) {
    if (pattern.startsWith('!')) {
      if (matchesPattern(name, pattern.slice(1))) return false
    } else found ||= matchesPattern(name, pattern)
  }
  return found
}

/** The lines about a host; `name` as `knownHostsName` gives it, or an alias. */
export const linesOf = (entries: readonly KnownHost[], name: string): KnownHost[] =>
  entries.filter((entry) => matchesNames(name, entry.names))

/**
 * Compares the key that a server shows with the known keys. A known host with any other key, also
 * one of another type, is `changed`: otherwise an impostor would only need a type that was not seen
 * before. Certificate authorities are not used: host certificates are not read; `authority` marks
 * that one was named, so that the refusal can mention it.
 */
export const judgeHostKey = (
  key: Buffer,
  name: string,
  known: { entries: readonly KnownHost[]; fingerprints: readonly string[] },
): HostKeyVerdict => {
  const lines = linesOf(known.entries, name)
  if (lines.some((line) => line.mark === 'revoked' && line.key.equals(key))) return { verdict: 'revoked' }
  const plain = lines.filter((line) => line.mark === undefined)
  const shown = fingerprint(key)
  const fingerprints = known.fingerprints.map((text) => text.trim().replace(/=+$/, ''))
  if (plain.some((line) => line.key.equals(key)) || fingerprints.includes(shown)) return { verdict: 'known' }
  const expected = [...new Set([...plain.map((line) => fingerprint(line.key)), ...fingerprints])]
  if (expected.length > 0) return { verdict: 'changed', expected }
  return { verdict: 'unknown', authority: lines.some((line) => line.mark === 'cert-authority') }
}
