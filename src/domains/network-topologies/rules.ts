export interface LinkProblem {
  link: number
  /** Empty: the link as a whole. */
  key: string
  message: string
}

/**
 * Problems among the links of a topology: repeated ids and pairs, a link from a resource to itself.
 * Takes any value and skips members of the wrong shape.
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
          message: `${JSON.stringify(id)} is the id of links.${String(first)} too; give each link its own`,
        })
    }
    if (typeof source !== 'string' || typeof target !== 'string' || source === '' || target === '') return
    if (source === target)
      problems.push({
        link,
        key: 'targetResourceId',
        message: `${JSON.stringify(source)} is the source of the link too; name two resources`,
      })
    const pair = JSON.stringify([source, target])
    const first = pairs.get(pair)
    if (first === undefined) pairs.set(pair, link)
    else
      problems.push({
        link,
        key: '',
        message:
          `links.${String(first)} leads from ${JSON.stringify(source)} to ${JSON.stringify(target)} ` +
          'already; join the two links',
      })
  })
  return problems
}
