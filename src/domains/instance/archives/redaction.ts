import { greatest } from '../../../lists.ts'
import { openAnyOf } from '../../../any-of.ts'
import type { ArchiveTable } from '../../../db/archive-schema.ts'
import { isFields, type Fields } from '../../../json-object.ts'
import { endpointWithout, type Addressed } from '../../environments/address-passwords.ts'
import { asWritten, normalisedKey, withoutEscapes } from '../../environments/secret-keys.ts'
import { kinds, referenceOf } from '../../../vault/vault.ts'

/** Removes secrets from an export: by the names of keys, by references, and by value. */

/** The replacement for a removed value. */
const gone = '[redacted]'
const goneBytes = Buffer.from(gone)

/** Parts of normalised names of keys that hold secrets (domain-reference 2). */
const secretParts =
  'token|secret|password|passphrase|privatekey|clientkey|apikey|authorization|credential|' +
  'kubeconfig|certificatekey|accesskey'
const secretKey = new RegExp(secretParts)
const writtenKey = new RegExp(`${asWritten(secretParts)}|"endpoint":\\s*"[^"@]*@`, 'i')
/** Finds every row that may have such a key in a configuration or an environment, or a password in an endpoint. */
const mayHold = (text: string): boolean => writtenKey.test(withoutEscapes(text))

/**
 * References of the vault, anywhere in a text. Other forms (`env:`, `file:`) are also those of ids, images and
 * paths: they go where a member names a credential, and nowhere else.
 */
const references = new RegExp(
  `(?<![\\w-])(?:${kinds.map((kind) => referenceOf(kind, '')).join('|')})[\\w-]+`,
  'g',
)

/** Finds every row that may have such a reference. */
const mayRefer = (text: string): boolean => text.includes('vault:')

/** Columns and members that hold ids, which clients choose: they stay, whatever they look like. */
const idName = /(?:^|_)ids?$|Ids?$/
/** An audit record names a credential by its reference. */
const isId = (table: string, column: string): boolean =>
  idName.test(column) && !(table === 'audit_events' && column === 'resource_id')

/** Columns that name a credential. */
export const credentialColumns: ReadonlySet<string> = new Set(['credential_ref', 'credential_reference'])

interface RawJson {
  rawJSON(text: string): unknown
  isRawJSON(value: unknown): boolean
  parse(text: string, revive: (key: string, value: unknown, context: { source?: string }) => unknown): unknown
}
const json = JSON as unknown as RawJson

/** Parses without converting numbers: they stay as PostgreSQL wrote them. */
const parsed = (line: string): Fields =>
  json.parse(line, (_, value, { source }) =>
    typeof value === 'number' && source !== undefined ? json.rawJSON(source) : value,
  ) as Fields

const keyText = (value: unknown): string => (typeof value === 'string' ? value : JSON.stringify(value))

const hasMembers = (value: unknown): value is Fields => isFields(value) && !json.isRawJSON(value)

/** A configuration without its secrets; each removed secret leaves a mark. */
const withoutSecrets = (value: unknown, found: () => void): unknown => {
  if (Array.isArray(value)) return value.map((item: unknown) => withoutSecrets(item, found))
  if (!hasMembers(value)) return value
  const members = Object.entries(value)
  const open = members.filter(([key]) => !secretKey.test(normalisedKey(key)))
  if (open.length < members.length) found()
  return Object.fromEntries(open.map(([key, item]) => [key, withoutSecrets(item, found)]))
}

const configurationWithout = (value: unknown): unknown => {
  let any = false
  const kept = withoutSecrets(value, () => {
    any = true
  })
  return any && hasMembers(kept)
    ? { ...kept, credentialStatus: 'redacted', requiresReconfiguration: true }
    : kept
}

/** Removes the values of environment variables. Their names stay. */
const variablesWithout = (value: unknown): unknown =>
  hasMembers(value)
    ? Object.fromEntries(
        Object.entries(value).map(([key, item]) => [key, secretKey.test(normalisedKey(key)) ? gone : item]),
      )
    : value

const walked = (value: unknown, addressed: Addressed): unknown => {
  if (Array.isArray(value)) return value.map((item: unknown) => walked(item, addressed))
  if (!hasMembers(value)) return value
  return Object.fromEntries(
    Object.entries(value).map(([key, item]) => {
      if (credentialColumns.has(key) || key === 'credentialRef' || key === 'credentialReference')
        return [key, typeof item === 'string' ? '' : item]
      if (key === 'endpoint') return [key, endpointWithout(item, addressed)]
      if (key === 'configuration') return [key, configurationWithout(item)]
      if (key === 'environment' || key === 'env' || key === 'variables') return [key, variablesWithout(item)]
      return [key, walked(item, addressed)]
    }),
  )
}

/** A value without references of the vault. */
const withoutReferences = (value: unknown, found: () => void): unknown => {
  if (typeof value === 'string') {
    const kept = value.replace(references, gone)
    if (kept !== value) found()
    return kept
  }
  if (Array.isArray(value)) return value.map((item: unknown) => withoutReferences(item, found))
  if (!hasMembers(value)) return value
  return Object.fromEntries(
    Object.entries(value).map(([key, item]) => [
      key,
      idName.test(key) ? item : withoutReferences(item, found),
    ]),
  )
}

const base64Forms = (bytes: Buffer): string[] =>
  [0, 1, 2].flatMap((shift) => {
    // The bytes around the secret change its first and last characters; those between are its own.
    const text = Buffer.concat([Buffer.alloc(shift), bytes])
      .toString('base64')
      .replace(/=+$/, '')
    const from = Math.ceil((shift * 8) / 6)
    const to = Math.floor(((shift + bytes.length) * 8) / 6)
    const core = text.slice(from, to)
    return core.length < 8 ? [] : [core, core.replaceAll('+', '-').replaceAll('/', '_')]
  })

const escaped = (text: string): string => JSON.stringify(text).slice(1, -1)

/** The forms in which a secret may occur in a row. */
const formsOf = (secret: string): string[] => {
  const percent = encodeURIComponent(secret)
  const forms = [
    secret,
    percent,
    percent.replaceAll(/%[0-9A-F]{2}/g, (code) => code.toLowerCase()),
    percent.replaceAll('%20', '+'),
    ...base64Forms(Buffer.from(secret)),
  ]
  // PostgreSQL writes bytes, such as the output of a command, in hexadecimal.
  const inBytes = forms.map((form) => Buffer.from(form).toString('hex'))
  return [...forms, ...inBytes].flatMap((form) => [form, escaped(form), escaped(escaped(form))])
}

/** A value of type bytea. */
const bytesText = /^\\x(?:[0-9a-f]{2})*$/

const leastSecret = 8
/** The most hits that are named, and the most bytes of their list: a manifest has at most 1 MiB. */
const mostNamed = { hits: 1_000, bytes: 256 * 1024 }
/** Spaces and line breaks around a hit in the manifest. */
const bytesAround = 60

/** A value that was found in a row and removed. */
export interface Hit {
  table: string
  /** The row's primary key, the values of several columns apart by `/`. */
  id: string
  column: string
}

export interface Redaction {
  /** Whether a value occurs in bytes that cannot be changed, such as those of an image. */
  heldIn: (bytes: Buffer) => boolean
  /** The bytes of the longest form of a value: one may begin in a piece and end in the next. */
  longest: number
  /**
   * Rows of a table, whole lines, without secrets, as bytes. `keyed`: whether they have keys below
   * their columns, which may name a secret.
   */
  lines(table: Pick<ArchiveTable, 'name' | 'key'>, text: string, keyed: boolean): Buffer
  /** The first hits with their place, and the number of all hits. */
  hits: Hit[]
  count: number
  /** The columns with texts from which references of the vault were removed, and the number of those texts. */
  references(): ReferenceHits[]
}

/** Audit records repeat the reference of a credential at each use: they are counted by their column. */
interface ReferenceHits {
  table: string
  column: string
  texts: number
}

/** Redacts rows by the values that this installation holds as secrets. */
export const openRedaction = (secrets: readonly string[]): Redaction => {
  const forms = [...new Set(secrets.filter((text) => text.length >= leastSecret).flatMap(formsOf))]
  const search = openAnyOf(forms.map((form) => Buffer.from(form)))
  /** In the form of a row. Each match is checked again in the texts themselves. */
  const inRows = openAnyOf([...new Set(forms.map(escaped))].map((form) => Buffer.from(form)))
  const longest = greatest(
    forms.map((form) => Buffer.byteLength(form)),
    0,
  )

  /** Bytes without the values; undefined where they have none. */
  const bytesWithout = (bytes: Buffer): Buffer | undefined => {
    const kept: Buffer[] = []
    let from = 0
    for (let one = search(bytes); one !== undefined; one = search(bytes, one.end)) {
      kept.push(bytes.subarray(from, one.at), goneBytes)
      from = one.end
    }
    return from === 0 ? undefined : Buffer.concat([...kept, bytes.subarray(from)])
  }

  /** Texts and member names without the values; a number that equals one becomes null. */
  const without = (value: unknown, hit: () => void): unknown => {
    if (typeof value === 'string') {
      const kept = bytesWithout(Buffer.from(value))
      if (kept === undefined) return value
      hit()
      if (!bytesText.test(value)) return kept.toString()
      // Bytes as PostgreSQL writes them stay bytes.
      const bytes = Buffer.from(value.slice(2), 'hex')
      return `\\x${(bytesWithout(bytes) ?? bytes).toString('hex')}`
    }
    if (Array.isArray(value)) return value.map((item: unknown) => without(item, hit))
    if (json.isRawJSON(value) && search(Buffer.from((value as { rawJSON: string }).rawJSON)) !== undefined) {
      hit()
      return null
    }
    if (!hasMembers(value)) return value
    return Object.fromEntries(
      Object.entries(value).map(([key, item]) => [without(key, hit) as string, without(item, hit)]),
    )
  }

  let bytesNamed = 0
  const name = (hit: Hit): void => {
    redaction.count += 1
    bytesNamed += Buffer.byteLength(JSON.stringify(hit)) + bytesAround
    if (redaction.hits.length < mostNamed.hits && bytesNamed <= mostNamed.bytes) redaction.hits.push(hit)
  }

  const withoutValues = ({ name: table, key }: Pick<ArchiveTable, 'name' | 'key'>, line: string): string => {
    const row = parsed(line)
    const keys = key.map((column) => keyText(without(row[column], () => undefined)))
    const id = keys.join('/')
    const kept = Object.entries(row).map(([column, value]) => {
      let any = false
      const rest = without(value, () => {
        any = true
      })
      if (any) name({ table, id, column })
      return [column, rest]
    })
    return JSON.stringify(Object.fromEntries(kept))
  }

  const referring = new Map<string, ReferenceHits>()
  const referred = (table: string, column: string): void => {
    const at = `${table}.${column}`
    const { texts } = referring.get(at) ?? { texts: 0 }
    referring.set(at, { table, column, texts: texts + 1 })
  }

  const unreferred = ({ name: table, key }: Pick<ArchiveTable, 'name' | 'key'>, row: Fields): Fields =>
    Object.fromEntries(
      Object.entries(row).map(([column, value]) => [
        column,
        key.includes(column) || isId(table, column)
          ? value
          : withoutReferences(value, () => {
              referred(table, column)
            }),
      ]),
    )

  const oneLine = (table: Pick<ArchiveTable, 'name' | 'key'>, line: string, keyed: boolean): string => {
    let text = inRows(Buffer.from(line)) === undefined ? line : withoutValues(table, line)
    const addressed = table.name === 'connections' ? 'connection' : 'storage'
    if (keyed && mayHold(text)) text = JSON.stringify(walked(parsed(text), addressed))
    return mayRefer(text) ? JSON.stringify(unreferred(table, parsed(text))) : text
  }

  const redaction: Redaction = {
    hits: [],
    count: 0,
    references: () => [...referring.values()],
    heldIn: (bytes) => search(bytes) !== undefined,
    longest,
    lines: (table, text, keyed) => {
      const bytes = Buffer.from(text)
      if (!(keyed && mayHold(text)) && !mayRefer(text) && inRows(bytes) === undefined) return bytes
      return Buffer.from(
        text
          .split('\n')
          .map((line) => (line === '' ? line : oneLine(table, line, keyed)))
          .join('\n'),
      )
    },
  }
  return redaction
}
