type Json = Record<string, any>

const refName = (schema: Json): string | undefined =>
  (schema['$ref'] as string | undefined)?.split('/').at(-1)
const resolved = (document: Json, schema: Json): Json => {
  const name = refName(schema)
  return name === undefined ? schema : resolved(document, document['components'].schemas[name] as Json)
}
const typesOf = (schema: Json): string[] =>
  schema['type'] === undefined ? [] : ([schema['type']].flat() as string[])
const valuesOf = (schema: Json): unknown[] | undefined =>
  schema['const'] === undefined ? (schema['enum'] as unknown[] | undefined) : [schema['const']]

/**
 * What a client of the document `old` could trip over in the document `now`: an operation or a
 * parameter that is gone or has another name, a new demand on what is sent, a member that is no
 * longer answered.
 */
export const breakingChanges = (old: Json, now: Json): string[] => {
  const found = new Set<string>()

  /** `sent`: what clients send may not be narrowed; else what they get may not be widened. */
  const compare = (before: Json, after: Json, at: string, sent: boolean, seen: string): void => {
    const pair = `${refName(before) ?? ''}>${refName(after) ?? ''}`
    if (pair !== '>' && seen.includes(` ${pair} `)) return
    const deeper = pair === '>' ? seen : `${seen} ${pair} `
    const [a, b] = [resolved(old, before), resolved(now, after)]
    const [narrow, wide] = sent ? [a, b] : [b, a]
    const lost =
      typesOf(wide).length === 0 ? [] : typesOf(narrow).filter((type) => !fits(type, typesOf(wide)))
    if (lost.length > 0) found.add(`${at}: ${typesOf(a).join('|')} became ${typesOf(b).join('|')}`)
    const values = valuesOf(b)
    const missing = (valuesOf(a) ?? []).filter((value) => sent && values?.includes(value) === false)
    if (missing.length > 0) found.add(`${at}: ${missing.map(String).join(', ')} is no longer taken`)
    const [mine, theirs] = [(a['properties'] ?? {}) as Json, (b['properties'] ?? {}) as Json]
    for (const [name, member] of Object.entries<Json>(mine)) {
      if (theirs[name] === undefined) found.add(`${at}.${name}: is gone`)
      else compare(member, theirs[name] as Json, `${at}.${name}`, sent, deeper)
    }
    const [demanded, given] = [(b['required'] ?? []) as string[], (a['required'] ?? []) as string[]]
    if (sent)
      for (const name of demanded.filter((one) => !given.includes(one)))
        found.add(`${at}.${name}: is now required`)
    else
      for (const name of given.filter((one) => !demanded.includes(one) && theirs[one] !== undefined))
        found.add(`${at}.${name}: is no longer always there`)
    if (a['items'] !== undefined && b['items'] !== undefined)
      compare(a['items'] as Json, b['items'] as Json, `${at}[]`, sent, deeper)
  }
  const fits = (type: string, types: string[]): boolean =>
    types.includes(type) || (type === 'integer' && types.includes('number'))

  for (const [path, item] of Object.entries<Json>(old['paths']))
    for (const [method, before] of Object.entries<Json>(item)) {
      if (method === 'servers' || method === 'head') continue
      const at = `${method.toUpperCase()} ${path}`
      const after = now['paths'][path]?.[method] as Json | undefined
      if (after === undefined) {
        found.add(`${at}: is gone`)
        continue
      }
      if (after['operationId'] !== before['operationId'])
        found.add(`${at}: ${before['operationId']} is now called ${after['operationId']}`)
      const [mine, theirs] = [before['parameters'] as Json[], after['parameters'] as Json[]]
      for (const one of mine) {
        const other = theirs.find(({ name, in: place }) => name === one['name'] && place === one['in'])
        if (other === undefined) found.add(`${at}: parameter ${one['name']} is gone`)
        else compare(one['schema'] as Json, other['schema'] as Json, `${at} ${one['name']}`, true, '')
      }
      for (const one of theirs.filter(({ required }) => required))
        if (!mine.some(({ name, required }) => name === one['name'] && required))
          found.add(`${at}: parameter ${one['name']} is now required`)
      const json = (content: Json | undefined): Json | undefined =>
        content?.['content']?.['application/json']?.schema as Json | undefined
      const [body, newBody] = [json(before['requestBody'] as Json), json(after['requestBody'] as Json)]
      if (body !== undefined && newBody !== undefined) compare(body, newBody, `${at} body`, true, '')
      for (const [status, answer] of Object.entries<Json>(before['responses'])) {
        if (Number(status) >= 300) continue
        const other = after['responses'][status] as Json | undefined
        if (other === undefined) found.add(`${at}: ${status} is gone`)
        const [was, is] = [json(answer), json(other)]
        if (was !== undefined && is !== undefined) compare(was, is, `${at} ${status}`, false, '')
      }
    }
  return [...found]
}
