type Json = Record<string, any>
/** What breaks: the place below the compared one (`.member`, `[]`, empty for itself), and the text. */
type Finding = readonly [at: string, text: string]

const texts = (value: unknown): string[] => (value === undefined ? [] : ([value].flat() as string[]))
const valuesOf = (schema: Json): unknown[] | undefined =>
  schema['const'] === undefined ? (schema['enum'] as unknown[] | undefined) : [schema['const']]
/** Whether values of one form have the type of another. */
const fits = ({ type: narrow }: Json, { type: wide }: Json): boolean =>
  [narrow, undefined].includes(wide) || narrow === undefined || (narrow === 'integer' && wide === 'number')
const below = (step: string, found: readonly Finding[]): Finding[] =>
  found.map(([at, text]) => [`${step}${at}`, text])
const namedType = ({ type = 'anything' }: Json): string => String(type)
/** Whether a schema says nothing of a value but what describes it. */
const takesAll = (schema: Json): boolean =>
  !['type', 'enum', 'const', 'properties', 'items', 'anyOf', 'oneOf'].some((key) => key in schema)

/** The part of a document that a reference names, or the schema, answer or header itself. */
const resolved = (document: Json, part: Json): Json => {
  const reference = part['$ref'] as string | undefined
  if (reference === undefined) return part
  const found = reference
    .slice(2)
    .split('/')
    .reduce<any>((at, step) => at[step.replaceAll('~1', '/').replaceAll('~0', '~')], document)
  return resolved(document, found as Json)
}

/** A schema with what its `allOf` demands, in one. */
const whole = (document: Json, schema: Json): Json => {
  const { allOf = [], ...own } = resolved(document, schema)
  return (allOf as Json[])
    .map((part) => whole(document, part))
    .reduce(
      (all, part) => ({
        ...all,
        ...part,
        properties: { ...all['properties'], ...part['properties'] },
        required: [...texts(all['required']), ...texts(part['required'])],
      }),
      own,
    )
}

/** The forms that a value may have: the members of `anyOf` and `oneOf`, each with one type at most. */
const formsOf = (document: Json, schema: Json): Json[] => {
  const { anyOf, oneOf, ...own } = whole(document, schema)
  const forms = (anyOf ?? oneOf) as Json[] | undefined
  if (forms !== undefined) return forms.flatMap((form) => formsOf(document, { allOf: [own, form] }))
  const types = texts(own['type'])
  return types.length < 2 ? [own] : types.map((type) => ({ ...own, type }))
}

/** Compares schemas of `old` with those of `now`. */
const schemaComparison = (old: Json, now: Json) => {
  const known = new Map<string, Finding[]>()

  const membersOf = (a: Json, b: Json, sent: boolean): Finding[] => {
    const [mine, theirs] = [(a['properties'] ?? {}) as Json, (b['properties'] ?? {}) as Json]
    const [demanded, given] = [texts(b['required']), texts(a['required'])]
    return [
      ...Object.entries<Json>(mine).flatMap(([name, member]) =>
        theirs[name] === undefined
          ? [[`.${name}`, 'is gone'] as const]
          : below(`.${name}`, compare(member, theirs[name] as Json, sent)),
      ),
      ...(sent
        ? demanded
            .filter((name) => !given.includes(name))
            .map((name) => [`.${name}`, 'is now required'] as const)
        : given
            .filter((name) => !demanded.includes(name) && theirs[name] !== undefined)
            .map((name) => [`.${name}`, 'is no longer always there'] as const)),
      ...(a['type'] === 'object' ? furtherMembers(a, b, sent) : []),
    ]
  }

  /** Members without a name of their own. A new one in an answer breaks no client. */
  const furtherMembers = (a: Json, b: Json, sent: boolean): Finding[] => {
    const [mine, theirs] = [a['additionalProperties'] ?? true, b['additionalProperties'] ?? true]
    if (mine === false) return []
    if (theirs === false)
      return sent || mine !== true ? [['.*', sent ? 'is no longer taken' : 'is gone']] : []
    return below('.*', compare(mine === true ? {} : mine, theirs === true ? {} : theirs, sent))
  }

  const compareForm = (a: Json, b: Json, sent: boolean): Finding[] => {
    const [narrow, wide] = sent ? [a, b] : [b, a]
    if (takesAll(wide)) return []
    if (takesAll(narrow)) return [['', `${namedType(a)} became ${namedType(b)}`]]
    if (!fits(narrow, wide)) return [['', `${namedType(a)} became ${namedType(b)}`]]
    const isA = (type: string): boolean => [type, undefined].includes(a['type'] as string | undefined)
    const [values, kept] = [valuesOf(a) ?? [], valuesOf(b)]
    const missing = values.filter((value) => sent && kept?.includes(value) === false)
    return [
      ...(missing.length === 0
        ? []
        : [['', `${missing.map(String).join(', ')} is no longer taken`] as const]),
      ...(isA('object') ? membersOf(a, b, sent) : []),
      ...(!isA('array') || a['items'] === undefined || b['items'] === undefined
        ? []
        : below('[]', compare(a['items'] as Json, b['items'] as Json, sent))),
    ]
  }

  /**
   * `sent`: each form that clients send must still be taken; else each form that they get must be one
   * that they know.
   */
  const compare = (before: Json, after: Json, sent: boolean): Finding[] => {
    const pair = JSON.stringify([before, after, sent])
    const earlier = known.get(pair)
    if (earlier !== undefined) return earlier
    // A schema that holds itself is compared once.
    known.set(pair, [])
    const [mine, theirs] = [formsOf(old, before), formsOf(now, after)]
    const [every, some] = sent ? [mine, theirs] : [theirs, mine]
    const found = every.flatMap((form) => {
      const alike = some.filter((other) => fits(form, other))
      const tries = (every.length === 1 && some.length === 1 ? some : alike).map((other) =>
        sent ? compareForm(form, other, sent) : compareForm(other, form, sent),
      )
      const [nearest] = tries.toSorted((one, other) => one.length - other.length)
      return nearest ?? [['', `${namedType(form)} is ${sent ? 'no longer taken' : 'answered, too'}`] as const]
    })
    known.set(pair, found)
    return found
  }
  return compare
}

/**
 * What a client of the document `old` could trip over in the document `now`: an operation, a
 * parameter, an answer or a refusal that is gone or has another name, a new demand on what is sent, a
 * member that is no longer answered, a form that is no longer taken or was never answered before.
 */
export const breakingChanges = (old: Json, now: Json): string[] => {
  const found = new Set<string>()
  const schemas = schemaComparison(old, now)
  const compare = (before: Json, after: Json, at: string, sent: boolean): void => {
    for (const [place, text] of schemas(before, after, sent)) found.add(`${at}${place}: ${text}`)
  }

  /** Media types of a body or an answer, and their schemas. */
  const compareContent = (before: Json, after: Json, at: string, sent: boolean): void => {
    const schemaOf = (content: Json): Json => {
      const schema = (content['schema'] ?? {}) as Json
      return (schema['contentSchema'] ?? schema) as Json
    }
    for (const [type, content] of Object.entries<Json>(before['content'] ?? {})) {
      const other = after['content']?.[type] as Json | undefined
      if (other === undefined) found.add(`${at}: ${type} is gone`)
      else compare(schemaOf(content), schemaOf(other), at, sent)
    }
  }

  const compareParameters = (mine: Json[], theirs: Json[], at: string): void => {
    for (const one of mine) {
      const other = theirs.find(({ name, in: place }) => name === one['name'] && place === one['in'])
      if (other === undefined) found.add(`${at}: parameter ${one['name']} is gone`)
      else compare(one['schema'] as Json, other['schema'] as Json, `${at} ${one['name']}`, true)
    }
    for (const one of theirs.filter(({ required }) => required))
      if (!mine.some(({ name, required }) => name === one['name'] && required))
        found.add(`${at}: parameter ${one['name']} is now required`)
  }

  const compareOperation = (before: Json, after: Json, at: string): void => {
    if (after['operationId'] !== before['operationId'])
      found.add(`${at}: ${before['operationId']} is now called ${after['operationId']}`)
    compareParameters((before['parameters'] ?? []) as Json[], (after['parameters'] ?? []) as Json[], at)
    const [body, newBody] = [before['requestBody'], after['requestBody']] as (Json | undefined)[]
    if (body !== undefined && newBody !== undefined) compareContent(body, newBody, `${at} body`, true)
    if (newBody?.['required'] === true && body?.['required'] !== true)
      found.add(`${at}: a body is now required`)
    for (const [status, answer] of Object.entries<Json>(before['responses'])) {
      const other = after['responses'][status] as Json | undefined
      if (other === undefined) found.add(`${at}: ${status} is gone`)
      else compareContent(resolved(old, answer), resolved(now, other), `${at} ${status}`, false)
    }
  }

  for (const [path, item] of Object.entries<Json>(old['paths']))
    for (const [method, before] of Object.entries<Json>(item)) {
      if (method === 'servers' || method === 'head') continue
      const at = `${method.toUpperCase()} ${path}`
      const after = now['paths'][path]?.[method] as Json | undefined
      if (after === undefined) found.add(`${at}: is gone`)
      else compareOperation(before, after, at)
    }
  return [...found]
}
