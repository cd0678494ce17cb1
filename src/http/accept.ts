/**
 * One range of an Accept header: `text/*;q=0.5` is `{type: 'text/*', quality: 0.5}`. Parameters
 * other than q are ignored.
 */
interface Range {
  type: string
  quality: number
}

const ranges = (accept: string): Range[] =>
  accept.split(',').flatMap((part) => {
    const [type, ...parameters] = part.split(';').map((piece) => piece.trim().toLowerCase())
    if (type === undefined || type === '') return []
    const q = parameters.find((parameter) => parameter.startsWith('q='))
    const quality = q === undefined ? 1 : Number(q.slice(2))
    return [{ type, quality: quality >= 0 && quality <= 1 ? quality : 0 }]
  })

/**
 * The client's preference for `type`, 0 to 1. The most specific range of its Accept header decides
 * (RFC 9110, 12.5.1).
 */
const quality = (accepted: Range[], type: string): number => {
  const group = `${type.slice(0, type.indexOf('/'))}/*`
  for (const name of [type, group, '*/*']) {
    const range = accepted.find((candidate) => candidate.type === name)
    if (range !== undefined) return range.quality
  }
  return 0
}

const problemType = 'application/problem+json'

/**
 * Whether one of `types` may be sent. Without a header, or with an empty one, every type may. A
 * client that names only the type of problem documents chooses a form for errors only, so it
 * accepts every type too.
 */
export const accepts = (accept: string | undefined, types: readonly string[]): boolean => {
  if (accept === undefined || accept === '*/*' || accept.trim() === '') return true
  const accepted = ranges(accept)
  const wanted = accepted.filter((range) => range.quality > 0)
  if (wanted.length > 0 && wanted.every((range) => range.type === problemType)) return true
  return types.some((type) => quality(accepted, type) > 0)
}

/**
 * Whether a browser asks for a page: it names `text/html`, and prefers it no less than JSON.
 * Programs send a wildcard or no header.
 */
export const wantsPage = (accept: string | undefined): boolean => {
  if (accept === undefined || !accept.toLowerCase().includes('text/html')) return false
  const accepted = ranges(accept)
  const page = accepted.find((range) => range.type === 'text/html')?.quality ?? 0
  return page > 0 && page >= (accepted.find((range) => range.type === 'application/json')?.quality ?? 0)
}

/**
 * The type of `types` that a client prefers most, the first of equals, and the first where it
 * accepts none of them.
 */
export const preferred = (accept: string | undefined, types: readonly [string, ...string[]]): string => {
  if (accept === undefined || accept.trim() === '') return types[0]
  const accepted = ranges(accept)
  return types.reduce(
    (best, type) => (quality(accepted, type) > quality(accepted, best) ? type : best),
    types[0],
  )
}

/**
 * Whether errors are sent as `application/problem+json`: the client must name it, and prefer it no
 * less than plain JSON.
 */
export const prefersProblem = (accept: string | undefined): boolean => {
  if (accept === undefined || !accept.toLowerCase().includes(problemType)) return false
  const accepted = ranges(accept)
  const named = (type: string): number => accepted.find((range) => range.type === type)?.quality ?? 0
  return named(problemType) > 0 && named(problemType) >= named('application/json')
}
