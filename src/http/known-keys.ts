import leven from 'leven'
import type { Shape } from './keys.ts'

const memberOf = ({ keys }: Shape, name: string): Shape | undefined => {
  const known = keys?.get(name.toLowerCase())
  return known?.name === name ? known.shape() : undefined
}

/** The shape of the value at a path; undefined where the schema has none. */
const shapeAt = (shape: Shape, path: readonly PropertyKey[]): Shape | undefined =>
  path.reduce<Shape | undefined>(
    (at, step) => at && (memberOf(at, String(step)) ?? (at.element ?? at.values)?.()),
    shape,
  )

/** Members of a document are looked for down to this depth. */
const deepest = 6

/** Paths of a document that have a key, the shortest first; members of lists and maps as `[]`. */
const placesOf = (shape: Shape, key: string): string[] => {
  const found: string[] = []
  const seen = new Set<unknown>()
  const walk = (at: Shape, path: readonly string[]): void => {
    const own = at.keys ?? at
    if (path.length >= deepest || seen.has(own)) return
    seen.add(own)
    for (const member of [at.element, at.values])
      if (member !== undefined) walk(member(), [...path.slice(0, -1), `${path.at(-1) ?? ''}[]`])
    if (memberOf(at, key) !== undefined) found.push([...path, key].join('.'))
    for (const known of at.keys?.values() ?? []) walk(known.shape(), [...path, known.name])
  }
  walk(shape, [])
  return found.sort((a, b) => a.split('.').length - b.split('.').length || (a < b ? -1 : 1))
}

/** Longer keys are not compared: no typing error produces them. */
const longest = 64

/**
 * A hint for an unknown key: the known key with the most similar spelling, or the place where the
 * document has this key. Undefined where neither is close.
 */
export const keyHint = (shape: Shape, path: readonly PropertyKey[], key: string): string | undefined => {
  if (key.length > longest) return undefined
  const [near] = [...(shapeAt(shape, path)?.keys?.values() ?? [])]
    .map(({ name: known }) => ({ known, distance: leven(known.toLowerCase(), key.toLowerCase()) }))
    .filter(
      ({ known, distance }) => distance <= Math.max(1, Math.floor(Math.min(known.length, key.length) / 3)),
    )
    .sort((a, b) => a.distance - b.distance || (a.known < b.known ? -1 : 1))
  if (near !== undefined) return `did you mean ${JSON.stringify(near.known)}?`
  const [place] = placesOf(shape, key)
  if (place === undefined) return undefined
  return place.includes('.')
    ? `it belongs to ${JSON.stringify(place.slice(0, place.lastIndexOf('.')))}`
    : 'it belongs to the top of the document'
}
