export interface LinkProblem {
  link: number
  /** Empty: the link as a whole. */
  key: string
  message: string
}

/**
 * What the links of a topology break among themselves: ids and pairs that stand twice, a link from a resource to itself. Takes any
 * value; what has the wrong shape is passed over.
 */
export const linkProblems = (topology: unknown): LinkProblem[] => {
  const links = (topology as { links?: unknown } | null | undefined)?.links
  if (!Array.isArray(links)) return []
  const ids = new Map<string, number>()
  const pairs = new Map<string, number>()
  const problems: LinkProblem[] = []
  links.forEach((given: unknown, link) => {
    if (typeof given !== 'object' || given === null) return
    const { id, sourceResourceId: source, targetResourceId: target } = given as Record<string, unknown>
    if (typeof id === 'string' && id !== '') {
      const first = ids.get(id)
      if (first === undefined) ids.set(id, link)
      else
        problems.push({
          link,
          key: 'id',
          message: `the link id ${JSON.stringify(id)} stands at links.${String(first)}.id already; give each its own`,
        })
    }
    if (typeof source !== 'string' || typeof target !== 'string' || source === '' || target === '') return
    if (source === target)
      problems.push({ link, key: 'targetResourceId', message: `a link cannot lead from the resource ${JSON.stringify(source)} to itself` })
    const pair = JSON.stringify([source, target])
    const first = pairs.get(pair)
    if (first === undefined) pairs.set(pair, link)
    else
      problems.push({
        link,
        key: '',
        message: `links.${String(first)} leads from ${JSON.stringify(source)} to ${JSON.stringify(target)} already; join the two links`,
      })
  })
  return problems
}
