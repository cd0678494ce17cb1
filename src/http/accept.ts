/** One range of an Accept header: `text/*;q=0.5` is `{type: 'text/*', quality: 0.5}`. Parameters other than q are ignored. */
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

/** How much a client wants `type`, 0 to 1: the most specific range of its Accept header decides (RFC 9110, 12.5.1). */
const quality = (accepted: Range[], type: string): number => {
  const group = `${type.slice(0, type.indexOf('/'))}/*`
  for (const name of [type, group, '*/*']) {
    const range = accepted.find((candidate) => candidate.type === name)
    if (range !== undefined) return range.quality
  }
  return 0
}

/** Whether one of `types` may be sent; no header, or an empty one, accepts everything. */
export const accepts = (accept: string | undefined, types: readonly string[]): boolean => {
  if (accept === undefined || accept === '*/*' || accept.trim() === '') return true
  const accepted = ranges(accept)
  return types.some((type) => quality(accepted, type) > 0)
}

/** Whether a browser asks for a page to look at: it names `text/html`, and wants it no less than JSON. Programs send a wildcard or nothing. */
export const wantsPage = (accept: string | undefined): boolean => {
  if (accept === undefined || !accept.toLowerCase().includes('text/html')) return false
  const accepted = ranges(accept)
  const page = accepted.find((range) => range.type === 'text/html')?.quality ?? 0
  return page > 0 && page >= (accepted.find((range) => range.type === 'application/json')?.quality ?? 0)
}

/** Whether errors go out as `application/problem+json`: it must be named, and wanted no less than plain JSON. */
export const prefersProblem = (accept: string | undefined): boolean => {
  if (accept === undefined || !accept.toLowerCase().includes('application/problem+json')) return false
  const accepted = ranges(accept)
  const named = (type: string): number => accepted.find((range) => range.type === type)?.quality ?? 0
  return named('application/problem+json') > 0 && named('application/problem+json') >= named('application/json')
}
