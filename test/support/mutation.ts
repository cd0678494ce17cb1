import { parseSync } from 'oxc-parser'

/** A change of one function, found by its name, so its position in the file does not matter. */
export interface Mutation {
  /** Path below the checkout. */
  file: string
  /** Name of the function, as a declaration, a constant or a method. */
  function: string
  /** Must occur exactly once in that function. */
  replace: string
  by: string
}

interface Place {
  start: number
  end: number
}

const isNode = (value: unknown): value is Record<string, unknown> & Place & { type: string } =>
  typeof value === 'object' && value !== null && typeof (value as { type?: unknown }).type === 'string'

const nameOf = (node: unknown): unknown => (isNode(node) ? node['name'] : undefined)
const isFunction = (node: unknown): boolean =>
  isNode(node) && /^(ArrowFunctionExpression|FunctionExpression)$/.test(node.type)

/** The positions of the functions of this name in a file. */
const placesOf = (root: unknown, name: string): Place[] => {
  const found: Place[] = []
  const walk = (value: unknown): void => {
    if (Array.isArray(value)) {
      value.forEach(walk)
      return
    }
    if (!isNode(value)) return
    const declared = value.type === 'FunctionDeclaration' && nameOf(value['id']) === name
    const assigned =
      value.type === 'VariableDeclarator' && nameOf(value['id']) === name && isFunction(value['init'])
    const member = nameOf(value['key']) === name && isFunction(value['value'])
    if (declared || assigned || member) found.push(value)
    for (const child of Object.values(value)) walk(child)
  }
  walk(root)
  return found
}

/**
 * The text of a file with the mutation. @throws Error unless the function, and the text in it,
 * occurs exactly once
 */
export const mutated = (text: string, { file, function: name, replace, by }: Mutation): string => {
  const [place, ...others] = placesOf(parseSync(file, text).program, name)
  if (place === undefined || others.length > 0)
    throw new Error(
      `${file} has ${String(others.length + (place === undefined ? 0 : 1))} functions named ${name}`,
    )
  const body = text.slice(place.start, place.end)
  if (body.split(replace).length !== 2) throw new Error(`${name} of ${file} does not hold once: ${replace}`)
  return text.slice(0, place.start) + body.replace(replace, () => by) + text.slice(place.end)
}
