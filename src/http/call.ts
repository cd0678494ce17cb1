import { randomUUID } from 'node:crypto'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { Refusal, invalid } from '../refusal.ts'
import type { Actor } from './access.ts'
import type { Call, Upload } from './route.ts'
import { idLengths, isPlainText } from './schema.ts'
import type { Match } from './table.ts'

/** The argument of a handler. The abort signal is created only for a handler that reads it. */
export class HttpCall implements Call<string, unknown, unknown, Upload | undefined> {
  readonly params: Record<string, string>
  readonly query: unknown
  body: unknown
  upload: Upload | undefined
  readonly headers: Readonly<Record<string, string | undefined>>
  readonly requestId: string
  readonly target: string
  readonly actor: Actor
  readonly grant: string | undefined
  readonly #res: ServerResponse
  #controller: AbortController | undefined
  #newId: string | undefined

  constructor(
    req: IncomingMessage,
    res: ServerResponse,
    given: {
      params: Record<string, string>
      query: unknown
      requestId: string
      target: string
      actor: Actor
      grant?: string | undefined
    },
  ) {
    this.params = given.params
    this.query = given.query
    this.body = undefined
    this.upload = undefined
    this.requestId = given.requestId
    this.target = given.target
    this.actor = given.actor
    this.grant = given.grant
    // Only set-cookie is an array, and only in answers.
    this.headers = req.headers as Readonly<Record<string, string | undefined>>
    this.#res = res
  }

  get newId(): string {
    this.#newId ??= randomUUID()
    return this.#newId
  }

  set newId(id: string | undefined) {
    this.#newId = id
  }

  get signal(): AbortSignal {
    if (this.#controller === undefined) {
      const controller = new AbortController()
      this.#controller = controller
      const gone = (): void => {
        if (!this.#res.writableFinished) controller.abort()
      }
      if (this.#res.destroyed) gone()
      else this.#res.once('close', gone)
    }
    return this.#controller.signal
  }
}

const decoded = (text: string, what: string): string => {
  if (!text.includes('%')) return text
  try {
    return decodeURIComponent(text)
  } catch {
    throw invalid(`${what} ${JSON.stringify(text.slice(0, 80))} is not valid percent-encoded UTF-8`)
  }
}

/**
 * Characters of a path value: the longest id that the service makes of ids, and the longest path of
 * a file. Both are limits of the API's document too.
 */
export const pathLengths = { id: idLengths.made, file: 4_096 } as const

/**
 * The path's named segments, decoded. @throws 400 for values that cannot be an id, so that no store
 * receives them
 */
export const pathParams = (match: Match): Record<string, string> => {
  const params: Record<string, string> = {}
  const { names, tail } = match.entry
  names.forEach((name, i) => {
    const value = decoded(match.values[i] ?? '', `path value ${name}`)
    const file = tail && i === names.length - 1
    // The name of a file may hold every character but NUL.
    const [most, characters] = file ? [pathLengths.file, 'NUL'] : [pathLengths.id, 'control characters']
    if (file ? value.length > most || value.includes('\0') : !isPlainText(value, most)) {
      throw invalid(`path value ${name} must be 1 to ${most} characters without ${characters}`, [
        { path: name, message: `has ${value.length} characters or holds ${characters}` },
      ])
    }
    params[name] = value
  })
  return params
}

/**
 * Query names and values, decoded. A repeated name is refused, because the choice of one value
 * would be a guess.
 */
export const queryValues = (search: string): Record<string, string> => {
  const values: Record<string, string> = {}
  if (search === '') return values
  for (const part of search.split('&')) {
    if (part === '') continue
    const at = part.indexOf('=')
    const name = decoded((at === -1 ? part : part.slice(0, at)).replaceAll('+', ' '), 'query name')
    const value = at === -1 ? '' : decoded(part.slice(at + 1).replaceAll('+', ' '), `query value ${name}`)
    if (name === '__proto__') throw invalid(`query parameter ${name} is not allowed`)
    if (Object.hasOwn(values, name))
      throw invalid(`query parameter ${JSON.stringify(name)} is given twice`, [
        { path: name, message: 'give it once' },
      ])
    if (value.includes('\0'))
      throw new Refusal('invalid', `query parameter ${JSON.stringify(name)} holds the character NUL`)
    values[name] = value
  }
  return values
}
