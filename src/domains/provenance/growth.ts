/**
 * A bound for what the values of a statement may come to, read from its tree, and whether each name
 * behind the name of a row is one of its columns. PostgreSQL holds each
 * value whole in memory, and a short statement can make long ones: by replacements, separators,
 * paddings, quotes inside quotes, aggregates, and subqueries that repeat a column. A value without
 * such a rule here is no longer than its parts together.
 */

import { columnNames } from './catalogue.ts'

/** Characters that the statement or its values hold, and how many stored values go into one. */
interface Size {
  written: number
  stored: number
}

interface Scope {
  /** The longest column that can be named. */
  column: Size
  /** Whole rows by name. */
  rows: Map<string, Row>
  /** What the names of WITH give. */
  named: ReadonlyMap<string, Selected>
  /** What an aggregate over the rows of FROM comes to, as a multiple of what it is over one entity. */
  width: number
  lengthOf: (parameter: number) => number
}

/**
 * What a SELECT gives: its longest column, all of them together, the names of its columns, and its rows
 * as a multiple of an entity's.
 */
interface Selected extends Row {
  column: Size
  width: number
}

/** A row that has a name: its size, and the names of its columns. */
interface Row {
  row: Size
  /** In order; of an entity all names that any of them has, in the place of those it has. */
  names: readonly string[]
}

type Node = Record<string, unknown>
type Rule = (args: readonly Size[], nodes: readonly Node[], width: number) => Size

/** The most characters of all values in a row of a statement. */
export const mostCharacters = 64 * 1024 * 1024
/** What a stored value counts: few are longer. */
const storedLength = 4_096
/** So many rows an aggregate is expected to read, and so many elements an array to have. */
const rowsOfAggregate = 10_000
/** Stored values that an aggregate reads are short: together they come to so many long ones. */
const storedOfAggregate = 10
/** How many rows a join gives for each row of its first side. */
const rowsOfJoin = 100
/** Digits of the longest numeric. */
const mostDigits = 150_000

class TooLong extends Error {}

/** The message is the name of a row and a name that is none of its columns. */
export class NoColumn extends Error {}

const nothing: Size = { written: 0, stored: 0 }
const aStored: Size = { written: 0, stored: 1 }
const plus = (sizes: readonly Size[]): Size => ({
  written: sizes.reduce((sum, { written }) => sum + written, 0),
  stored: sizes.reduce((sum, { stored }) => sum + stored, 0),
})
const longest = (sizes: readonly Size[]): Size => ({
  written: sizes.reduce((most, { written }) => Math.max(most, written), 0),
  stored: sizes.reduce((most, { stored }) => Math.max(most, stored), 0),
})
const times = ({ written, stored }: Size, factor: number): Size => ({
  written: written * factor,
  stored: stored * factor,
})
const charactersOf = ({ written, stored }: Size): number => written + stored * storedLength
/** What is written is there once for each row, and then counts as if it were stored. */
const aggregated = ({ written, stored }: Size, width: number): Size => ({
  written: 0,
  stored: width * (stored * storedOfAggregate + (written * rowsOfAggregate) / storedLength),
})
/** Text inside of JSON, arrays and rows gets a backslash or a quote before each of both. */
const quoted = (size: Size): Size => times(size, 2)

/** Digits of a number that is written with an exponent. */
const exponentOf = (text: string): number => {
  const exponent = /^\s*[-+]?[\d._]+e\+?(\d+)\s*$/i.exec(text)?.[1]
  return exponent === undefined ? 0 : Math.min(Number(exponent), mostDigits)
}
/** Characters of a value that is given as text. */
export const lengthOfText = (text: string): number => text.length + exponentOf(text)

const constant = (node: Node | undefined): string | undefined => {
  const { sval } = (node?.['A_Const'] ?? {}) as { sval?: { sval?: string } }
  return sval === undefined ? undefined : (sval.sval ?? '')
}
const integer = (node: Node | undefined): number | undefined => {
  const { ival } = (node?.['A_Const'] ?? {}) as { ival?: { ival?: number } }
  return ival === undefined ? undefined : (ival.ival ?? 0)
}
const at = (sizes: readonly Size[], index: number): Size => sizes[index] ?? nothing
const countOf = (text: string, character: string): number => text.split(character).length - 1

const composed: Rule = (args) => quoted(plus(args))
const composedOfRows: Rule = (args, _nodes, width) => quoted(aggregated(plus(args), width))
const escaped: Rule = (args) => times(plus(args), 4)
const powers: Rule = (args) => plus([...args, { written: mostDigits, stored: 0 }])
const digits: Rule = (args, [, places]) =>
  places === undefined
    ? plus(args)
    : plus([...args, { written: Math.abs(integer(places) ?? 16_384), stored: 0 }])

/** Functions whose value can be longer than their arguments together. */
const rules: Record<string, Rule> = {
  string_agg: (args, _nodes, width) => aggregated(plus(args), width),
  ...{ array_agg: composedOfRows, json_agg: composedOfRows, jsonb_agg: composedOfRows },
  ...{ json_object_agg: composedOfRows, jsonb_object_agg: composedOfRows },
  ...{ to_json: composed, to_jsonb: composed },
  ...{ json_build_object: composed, jsonb_build_object: composed },
  ...{ json_build_array: composed, jsonb_build_array: composed },
  ...{ like_escape: escaped, similar_to_escape: escaped },
  // A letter of a format can stand for a number of seven digits or the name of a month.
  to_char: (args) => times(plus(args), 8),
  ...{ power: powers, exp: powers, round: digits, trunc: digits },
  concat_ws: (args) => plus([times(at(args, 0), args.length), ...args.slice(1)]),
  array_to_string: (args) => plus([at(args, 0), times(plus(args.slice(1)), rowsOfAggregate)]),
  replace: (args, [, from]) => {
    const each = charactersOf(at(args, 2)) / Math.max(1, constant(from)?.length ?? 1)
    return plus([times(at(args, 0), Math.max(1, each)), ...args.slice(1)])
  },
  regexp_replace: (args, nodes) => {
    const characters = charactersOf(at(args, 2))
    // A backslash puts in the found part, which all matches together have no more than once.
    const parts = constant(nodes[2]) === undefined ? characters / 2 : countOf(constant(nodes[2]) ?? '', '\\')
    // Without a flag only the first match is replaced.
    const each = args.length > 3 ? characters : 0
    return plus([times(at(args, 0), 1 + parts + each), ...args.slice(1)])
  },
  regexp_match: (args, [, pattern]) => {
    const groups = countOf(constant(pattern) ?? '('.repeat(100), '(')
    return quoted(plus([times(at(args, 0), 1 + groups), at(args, 1)]))
  },
}

const textsOf = (list: unknown): string[] =>
  (list as { String?: { sval?: string } }[]).map((item) => item.String?.sval ?? '')

/** The padding that a type's length stands for: of `char(n)`, and the digits of `numeric(n)`. */
const paddingOf = (typeName: Node): number => {
  const name = textsOf(typeName['names'] ?? []).at(-1) ?? ''
  if (!['bpchar', 'char', 'numeric'].includes(name)) return 0
  const [length] = (typeName['typmods'] ?? []) as Node[]
  const elements = typeName['arrayBounds'] === undefined ? 1 : rowsOfAggregate
  return length === undefined ? 0 : elements * (integer(length) ?? mostCharacters)
}

/** How the size of a node comes about, for those that are more than their parts. */
const kinds: Record<string, (node: Node, scope: Scope) => Size> = {
  A_Const: ({ sval, fval, ival }) => {
    const text =
      (sval as { sval?: string } | undefined)?.sval ?? (fval as { fval?: string } | undefined)?.fval
    return { written: text === undefined ? (ival === undefined ? 0 : 11) : lengthOfText(text), stored: 0 }
  },
  ParamRef: ({ number }, { lengthOf }) => ({ written: lengthOf(number as number), stored: 0 }),
  ColumnRef: ({ fields }, { column, rows }) => {
    const names = textsOf(fields)
    const [name = '', of] = names.toReversed()
    const whole =
      starOf({ ColumnRef: { fields } }) === undefined && of !== undefined ? undefined : (of ?? name)
    if (whole !== undefined) {
      const row = rows.get(whole)
      return row === undefined ? column : quoted(longest([row.row, column]))
    }
    if (of === undefined) return column
    // PostgreSQL calls a function where no column has the name: `r.pg_typeof` is `pg_typeof(r)`. Behind
    // the name of a schema there is an entity.
    const known = names.length === 3 ? ofEntities : (rows.get(of)?.names ?? ofEntities)
    if (!known.includes(name)) throw new NoColumn(`${of}.${name}`)
    return column
  },
  FuncCall: (node, scope) => {
    const { funcname, args = [], ...others } = node
    sizeOf(others, scope)
    const nodes = args as Node[]
    const sizes = nodes.map((arg) => sizeOf(arg, scope))
    const name = textsOf(funcname).at(-1) ?? ''
    return Object.hasOwn(rules, name) ? (rules[name] as Rule)(sizes, nodes, scope.width) : plus(sizes)
  },
  A_Expr: ({ name, ...parts }, scope) =>
    textsOf(name).at(-1) === '^' ? powers([sizeOf(parts, scope)], [], scope.width) : sizeOf(parts, scope),
  TypeCast: ({ arg, typeName }, scope) =>
    plus([sizeOf(arg, scope), { written: paddingOf(typeName as Node), stored: 0 }]),
  A_ArrayExpr: (node, scope) => quoted(sizeOf(Object.values(node), scope)),
  RowExpr: (node, scope) => quoted(sizeOf(Object.values(node), scope)),
  SelectStmt: (node, scope) => selected(node, scope).column,
  SubLink: ({ subLinkType, subselect, ...parts }, scope) => {
    const { column, width } = selected((subselect as Node)['SelectStmt'] as Node, scope)
    const size = plus([column, sizeOf(Object.values(parts), scope)])
    return subLinkType === 'ARRAY_SUBLINK' ? quoted(aggregated(size, width)) : size
  },
}

const sizeOf = (value: unknown, scope: Scope): Size => {
  if (Array.isArray(value)) return plus(value.map((item) => sizeOf(item, scope)))
  if (typeof value !== 'object' || value === null) return nothing
  const sizes = Object.entries(value).map(([key, part]) =>
    Object.hasOwn(kinds, key) ? kinds[key]!(part as Node, scope) : sizeOf(part, scope),
  )
  const size = plus(sizes)
  if (charactersOf(size) > mostCharacters) throw new TooLong()
  return size
}

interface Source {
  alias?: { aliasname?: string; colnames?: unknown }
  join_using_alias?: { aliasname?: string }
  relname?: string
}
const nameOf = ({ alias, relname }: Source): string => alias?.aliasname ?? relname ?? ''

const ofEntities: readonly string[] = [...columnNames]

/**
 * A row under other names for its first columns. Where the columns of an entity are among them their
 * places are unknown: only names of entities stay then, none of which is a function of a row.
 */
const renamed = (names: readonly string[], given: unknown): readonly string[] => {
  if (given === undefined) return names
  const first = textsOf(given)
  const stays = names.length < ofEntities.length ? names.slice(first.length) : ofEntities
  return [...first, ...stays]
}

/** What one entity, name of WITH or subquery of FROM gives. */
const givenBy = ({ subquery, schemaname, relname }: Node, scope: Scope): Selected =>
  subquery !== undefined
    ? selected((subquery as Node)['SelectStmt'] as Node, scope)
    : ((schemaname === undefined ? scope.named.get(String(relname)) : undefined) ?? {
        ...{ column: aStored, row: aStored, width: 1, names: ofEntities },
      })

const joined = (rows: Iterable<Row>): Row => {
  const all = [...rows]
  return { row: plus(all.map(({ row }) => row)), names: all.flatMap(({ names }) => names) }
}

/** The rows that one scope has beside those of another. */
const rowsBeside = (inner: ReadonlyMap<string, Row>, outer: ReadonlyMap<string, Row>): [string, Row][] =>
  [...inner].filter(([name, row]) => outer.get(name) !== row)

/**
 * Adds what a part of FROM gives to the names of a scope. `around`: that of the SELECT. A subquery sees
 * only that, unless it is LATERAL, and so do conditions of a join, beside the two sides.
 */
const addSource = (source: Node, scope: Scope, around: Scope): void => {
  for (const [kind, part] of Object.entries(source) as [string, Node & Source][]) {
    if (kind === 'RangeVar' || kind === 'RangeSubselect') {
      const { column, row, names, width } = givenBy(part, part['lateral'] === true ? scope : around)
      // No name of PostgreSQL has the character NUL.
      const name = nameOf(part) || `\0${String(scope.rows.size)}`
      scope.rows.set(name, { row, names: renamed(names, part.alias?.colnames) })
      scope.column = longest([scope.column, column])
      scope.width = scope.width === 0 ? width : scope.width * width * rowsOfJoin
    } else if (kind === 'JoinExpr') {
      const inside: Scope = { ...scope, rows: new Map(scope.rows) }
      addSource(part['larg'] as Node, inside, around)
      addSource(part['rarg'] as Node, inside, around)
      const both = rowsBeside(inside.rows, scope.rows)
      sizeOf(part['quals'], { ...inside, rows: new Map([...around.rows, ...both]) })
      scope.column = inside.column
      scope.width = inside.width
      const whole = joined(both.map(([, row]) => row))
      const { alias, join_using_alias: using } = part
      // An alias hides all names inside.
      if (alias !== undefined) {
        scope.rows.set(nameOf(part), { ...whole, names: renamed(whole.names, alias.colnames) })
        continue
      }
      for (const [name, row] of both) scope.rows.set(name, row)
      if (using !== undefined)
        scope.rows.set(nameOf({ alias: using }), { ...whole, names: textsOf(part['usingClause'] ?? []) })
    }
  }
}

/** Of `*` and `q.*` the names before the star. */
const starOf = (val: unknown): string[] | undefined => {
  const fields = (val as { ColumnRef?: { fields?: Node[] } }).ColumnRef?.fields ?? []
  return fields.some((field) => 'A_Star' in field) ? textsOf(fields.slice(0, -1)) : undefined
}

interface Target {
  name?: string
  val?: unknown
}

/** The first side of a UNION, whose columns give it their names. */
const firstSelect = (select: Node): Node =>
  select['larg'] === undefined ? select : firstSelect(select['larg'] as Node)

const words: Record<string, string> = {
  ...{ GroupingFunc: 'grouping', A_ArrayExpr: 'array', RowExpr: 'row', CoalesceExpr: 'coalesce' },
  ...{ IS_GREATEST: 'greatest', IS_LEAST: 'least', EXISTS_SUBLINK: 'exists', ARRAY_SUBLINK: 'array' },
}

/**
 * The name that PostgreSQL gives a column without one (FigureColname of its parser), and whether a cast
 * around it leaves it.
 */
const nameOfTarget = ({ name, val }: Target): { name: string; stays: boolean } => {
  if (name !== undefined) return { name, stays: true }
  const [[kind, node]] = [...Object.entries((val ?? {}) as Record<string, Node>), ['', {}] as [string, Node]]
  const named = (given: string | undefined, stays = true) =>
    given === undefined ? { name: '?column?', stays: false } : { name: given, stays }
  const last = (list: unknown): string | undefined => textsOf(list ?? []).at(-1)
  const inner = (part: unknown) => nameOfTarget({ val: part })
  switch (kind) {
    case 'ColumnRef':
      return named(last(node['fields']))
    case 'FuncCall':
      return named(last(node['funcname']))
    case 'A_Indirection':
    case 'CollateClause':
      return inner(node['arg'])
    case 'TypeCast': {
      const of = inner(node['arg'])
      return of.stays ? of : named(last((node['typeName'] as Node)['names']), false)
    }
    case 'CaseExpr': {
      const of = inner(node['defresult'])
      return of.stays ? of : named('case', false)
    }
    case 'SubLink': {
      const { targetList } = firstSelect((node['subselect'] as Node)['SelectStmt'] as Node)
      const [first] = (targetList ?? []) as { ResTarget?: Target }[]
      return node['subLinkType'] === 'EXPR_SUBLINK'
        ? { name: nameOfTarget(first?.ResTarget ?? {}).name, stays: true }
        : named(words[String(node['subLinkType'])])
    }
    case 'A_Expr':
      return named(node['kind'] === 'AEXPR_NULLIF' ? 'nullif' : undefined)
    case 'MinMaxExpr':
      return named(words[String(node['op'])])
    case 'SQLValueFunction':
      return named(
        String(node['op'])
          .replace(/^SVFOP_|_N$/g, '')
          .toLowerCase(),
      )
    default:
      return named(words[kind])
  }
}

/** The names of a WITH beside those of the scope around it. */
const withNames = (withClause: unknown, scope: Scope): Scope['named'] => {
  const named = new Map(scope.named)
  const { ctes = [] } = (withClause ?? {}) as { ctes?: { CommonTableExpr: Node }[] }
  for (const { CommonTableExpr: one } of ctes) {
    const query = (one['ctequery'] as Node)['SelectStmt'] as Node
    const given = selected(query, { ...scope, named: new Map(named) })
    named.set(String(one['ctename']), { ...given, names: renamed(given.names, one['aliascolnames']) })
  }
  return named
}

const selected = (select: Node, around: Scope): Selected => {
  const { withClause, larg, rarg, fromClause = [], targetList = [], ...others } = select
  const outer: Scope = { ...around, named: withNames(withClause, around) }
  const sides = [larg, rarg].flatMap((side) => (side === undefined ? [] : [selected(side as Node, outer)]))
  const scope: Scope = { ...outer, rows: new Map(outer.rows), width: 0 }
  for (const source of fromClause as Node[]) addSource(source, scope, outer)
  // Without FROM there is one row.
  scope.width ||= 1
  const all = joined(rowsBeside(scope.rows, outer.rows).map(([, row]) => row))
  const targets = (targetList as { ResTarget?: Target }[]).map(({ ResTarget: target = {} }) => {
    const star = starOf(target.val)?.at(-1)
    if (starOf(target.val) !== undefined)
      return { column: scope.column, ...((star === undefined ? undefined : scope.rows.get(star)) ?? all) }
    const size = sizeOf(target.val, scope)
    return { column: size, row: size, names: [nameOfTarget(target).name] }
  })
  const row = plus(targets.map((target) => target.row))
  // All values of a row are in memory at once, with those of its conditions.
  if (charactersOf(plus([row, sizeOf(others, scope)])) > mostCharacters) throw new TooLong()
  return {
    column: longest([...sides, ...targets].map(({ column }) => column)),
    row: longest([row, ...sides.map((side) => side.row)]),
    // The columns of a UNION have the names of its first side.
    names: sides[0]?.names ?? targets.flatMap(({ names }) => names),
    width: sides.length === 0 ? scope.width : sides.reduce((sum, { width }) => sum + width, 0),
  }
}

/**
 * Whether the values of one row may come to more than `mostCharacters`.
 * @param select the members of a judged SELECT
 * @param lengthOf the characters of a parameter, by its number
 * @throws NoColumn
 */
export const mayGrow = (select: object, lengthOf: (parameter: number) => number): boolean => {
  try {
    selected(select as Node, { column: nothing, rows: new Map(), named: new Map(), width: 1, lengthOf })
    return false
  } catch (error) {
    if (error instanceof TooLong) return true
    throw error
  }
}
