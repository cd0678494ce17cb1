import { loadModule, parseSync } from 'libpg-query'
import { invalid } from '../../refusal.ts'
import { mayGrow, mostCharacters, NoColumn } from './growth.ts'

/**
 * The first check of statements from clients: PostgreSQL's own grammar, and of its tree only the
 * parts listed here. An unlisted node, member of a node, function, operator or type is refused, so
 * additions of a later grammar are refused until they are reviewed and listed.
 */

/**
 * Members of a node: `walk` holds nodes, `bare` a node without its tag, `plain` a value that does
 * not affect access. A function judges its member.
 */
type Member = 'walk' | 'plain' | { bare: string } | Judge['judge']

/** A method: each judges a value of its own type, which the parser guarantees. */
interface Judge {
  judge(value: unknown, context: Context): void
}

interface Context {
  entities: ReadonlyMap<string, string>
  read: Set<string>
  placeholders: number
  depth: number
  /** Bytes at which names begin that carry their schema. */
  qualified: number[]
  /** Names of WITH that are in scope, in the order in which they were given. */
  named: readonly string[]
}

const refuse = (reason: string): never => {
  throw invalid(`statement: ${reason}`, [{ path: 'statement', message: reason }])
}

const words = (text: string): ReadonlySet<string> => new Set(text.trim().split(/\s+/))

/**
 * Functions without access to files, settings, sessions, other tables or XML. `growth.ts` has a rule
 * for each whose value can be longer than its arguments.
 */
const functions = words(`
  count sum avg min max stddev stddev_pop stddev_samp variance var_pop var_samp bool_and bool_or every
    string_agg array_agg json_agg jsonb_agg json_object_agg
  jsonb_object_agg percentile_cont percentile_disc mode corr covar_pop covar_samp regr_slope regr_intercept
    regr_r2 any_value bit_and bit_or
  row_number rank dense_rank percent_rank cume_dist ntile lag lead first_value last_value nth_value
  lower upper initcap length char_length character_length octet_length bit_length substr substring left right
    trim btrim ltrim rtrim replace translate position strpos
  split_part concat concat_ws reverse starts_with ascii md5 overlay regexp_count regexp_instr regexp_like
    regexp_match regexp_replace regexp_substr similar_to_escape
  like_escape to_char to_date to_number to_timestamp date_trunc date_part date_bin extract age now
    statement_timestamp transaction_timestamp clock_timestamp
  timezone make_date make_interval make_timestamp make_timestamptz justify_days justify_hours justify_interval isfinite
  abs ceil ceiling floor round trunc sign sqrt cbrt power exp ln log log10 mod div degrees radians width_bucket
    gcd lcm min_scale scale trim_scale
  json_array_length jsonb_array_length json_typeof jsonb_typeof json_extract_path json_extract_path_text
    jsonb_extract_path jsonb_extract_path_text jsonb_exists
  jsonb_path_exists to_json to_jsonb jsonb_strip_nulls json_strip_nulls jsonb_build_object json_build_object
    jsonb_build_array json_build_array
  array_length array_position array_lower array_upper array_ndims array_to_string cardinality
`)
const operators = words(
  '= <> != < <= > >= + - * / % ^ || ~ ~* !~ !~* ~~ ~~* !~~ !~~* -> ->> #> #>> @> <@ ? ?| ?& && & ' +
    '| # << >> @ |/ ||/ ^@ -|-',
)
const types =
  words(`text varchar bpchar char name int2 int4 int8 smallint int integer bigint float4 float8 real numeric
    decimal bool boolean date time timetz timestamp
  timestamptz interval json jsonb uuid`)

interface Text {
  String?: { sval?: string }
}
const textsOf = (list: readonly Text[]): string[] =>
  list.map((item) => item.String?.sval ?? refuse('a name in it is not a plain one'))

/** The last part of a name that may be in PostgreSQL's own schema. */
const ownName = (list: readonly Text[], what: string): string => {
  const names = textsOf(list)
  if (names.length > 2 || (names.length === 2 && names[0] !== 'pg_catalog'))
    refuse(`${what} ${names.join('.')} is not one that statements may use`)
  return names.at(-1) ?? ''
}

const operator = (list: Text[]): void => {
  const name = ownName(list, 'operator')
  if (!operators.has(name)) refuse(`operator ${name} is not one that statements may use`)
}
const functionName = (list: Text[]): void => {
  const name = ownName(list, 'function')
  if (!functions.has(name)) refuse(`function ${name.slice(0, 80)} is not one that statements may use`)
}
const typeName = (list: Text[]): void => {
  const name = ownName(list, 'type')
  if (!types.has(name)) refuse(`type ${name.slice(0, 80)} is not one that statements may use`)
}
const collation = (list: Text[]): void => {
  const name = ownName(list, 'collation')
  if (!['C', 'POSIX', 'ucs_basic', 'default', 'unicode'].includes(name))
    refuse(`collation ${name.slice(0, 80)} is not one that statements may use`)
}
/** Members that are present only where a statement asks for a forbidden feature. */
const never =
  (what: string): Member =>
  () =>
    refuse(`${what} is not possible`)

const column = (fields: (Text & { A_Star?: object })[]): void => {
  const names = fields.map((field) => (field.A_Star === undefined ? (field.String?.sval ?? '') : '*'))
  if (names.length > 3 || (names.length === 3 && names[0] !== 'provenance'))
    refuse(`${names.join('.').slice(0, 80)} is not a column of an entity`)
}

const select = {
  distinctClause: 'walk',
  intoClause: never('INTO'),
  targetList: 'walk',
  fromClause: 'walk',
  whereClause: 'walk',
  groupClause: 'walk',
  groupDistinct: 'plain',
  groupByAll: 'plain',
  havingClause: 'walk',
  windowClause: 'walk',
  valuesLists: never('VALUES'),
  sortClause: 'walk',
  limitOffset: 'walk',
  limitCount: 'walk',
  limitOption: 'plain',
  lockingClause: never('locking (FOR UPDATE, FOR SHARE)'),
  // Judged before the other members, whose names it gives.
  withClause: 'plain',
  op: 'plain',
  all: 'plain',
  larg: { bare: 'SelectStmt' },
  rarg: { bare: 'SelectStmt' },
} satisfies Record<string, Member>

const nodes: Record<string, Record<string, Member>> = {
  SelectStmt: select,
  WithClause: { ctes: 'walk', recursive: never('WITH RECURSIVE') },
  CommonTableExpr: {
    ctename: (name: string) =>
      // Every table of PostgreSQL's own begins so.
      name.startsWith('pg_') ? refuse(`${name.slice(0, 80)} is not a name that WITH may give`) : undefined,
    aliascolnames: 'walk',
    ctematerialized: 'plain',
    ctequery: 'walk',
  },
  ResTarget: { name: 'plain', indirection: 'walk', val: 'walk' },
  ColumnRef: { fields: column },
  A_Star: {},
  String: { sval: 'plain' },
  Integer: { ival: 'plain' },
  A_Const: { ival: 'plain', fval: 'plain', boolval: 'plain', sval: 'plain', bsval: 'plain', isnull: 'plain' },
  ParamRef: {
    number: (_: never, context: Context) => {
      context.placeholders++
    },
  },
  A_Expr: {
    kind: 'plain',
    name: operatorOf,
    lexpr: 'walk',
    rexpr: 'walk',
    rexpr_list_start: 'plain',
    rexpr_list_end: 'plain',
  },
  BoolExpr: { boolop: 'plain', args: 'walk' },
  NullTest: { arg: 'walk', nulltesttype: 'plain', argisrow: 'plain' },
  BooleanTest: { arg: 'walk', booltesttype: 'plain' },
  CaseExpr: { arg: 'walk', args: 'walk', defresult: 'walk' },
  CaseWhen: { expr: 'walk', result: 'walk' },
  CoalesceExpr: { args: 'walk' },
  MinMaxExpr: { op: 'plain', args: 'walk' },
  SubLink: { subLinkType: 'plain', testexpr: 'walk', operName: operator, subselect: 'walk' },
  SortBy: { node: 'walk', sortby_dir: 'plain', sortby_nulls: 'plain', useOp: never('ORDER BY … USING') },
  FuncCall: {
    funcname: functionName,
    args: 'walk',
    agg_order: 'walk',
    agg_filter: 'walk',
    over: { bare: 'WindowDef' },
    agg_within_group: 'plain',
    agg_star: 'plain',
    agg_distinct: 'plain',
    funcformat: 'plain',
  },
  WindowDef: {
    name: 'plain',
    refname: 'plain',
    partitionClause: 'walk',
    orderClause: 'walk',
    frameOptions: 'plain',
    startOffset: 'walk',
    endOffset: 'walk',
  },
  TypeCast: { arg: 'walk', typeName: { bare: 'TypeName' } },
  TypeName: { names: typeName, typmods: 'walk', arrayBounds: 'walk', typemod: 'plain' },
  CollateClause: { arg: 'walk', collname: collation },
  A_ArrayExpr: { elements: 'walk', list_start: 'plain', list_end: 'plain' },
  A_Indirection: {
    arg: 'walk',
    indirection: (parts: Record<string, unknown>[], context: Context) => {
      // `(1).name` is `name(1)`.
      if (parts.some((part) => 'String' in part))
        refuse('a name behind (…). is not possible; write row.column')
      if (parts.some((part) => 'A_Star' in part)) refuse('(…).* is not possible; write row.*')
      walk(parts, context)
    },
  },
  A_Indices: { is_slice: 'plain', lidx: 'walk', uidx: 'walk' },
  RowExpr: { args: 'walk', row_format: 'plain' },
  List: { items: 'walk' },
  GroupingSet: { kind: 'plain', content: 'walk' },
  GroupingFunc: { args: 'walk' },
  SQLValueFunction: { op: momentOnly, typmod: 'plain' },
  RangeVar: {
    catalogname: never('another database'),
    schemaname: (name: string) =>
      name === 'provenance' ? undefined : refuse(`schema ${name.slice(0, 80)} cannot be read`),
    relname: (name: string, context: Context) => {
      if (context.named.includes(name)) return
      const table = context.entities.get(name)
      if (table === undefined)
        refuse(
          `${JSON.stringify(name.slice(0, 80))} is not an entity; GET /provenance/sql/schema/ lists them`,
        )
      else context.read.add(table)
    },
    inh: 'plain',
    relpersistence: 'plain',
    alias: { bare: 'Alias' },
  },
  RangeSubselect: { lateral: 'plain', subquery: 'walk', alias: { bare: 'Alias' } },
  JoinExpr: {
    jointype: 'plain',
    isNatural: 'plain',
    larg: 'walk',
    rarg: 'walk',
    usingClause: 'walk',
    join_using_alias: { bare: 'Alias' },
    quals: 'walk',
    alias: { bare: 'Alias' },
    rtindex: 'plain',
  },
  Alias: { aliasname: 'plain', colnames: 'walk' },
}

/** Readable names of refused nodes whose grammar name is unclear. */
const spoken: Record<string, string> = {
  RangeFunction: 'a function in FROM',
  RangeTableSample: 'TABLESAMPLE',
  RangeTableFunc: 'XMLTABLE',
  JsonTable: 'JSON_TABLE',
  XmlExpr: 'XML',
  NamedArgExpr: 'a named argument',
  SetToDefault: 'DEFAULT',
  CurrentOfExpr: 'CURRENT OF',
}

function operatorOf(list: Text[]): void {
  // BETWEEN and its variants have their keywords as a name.
  const [only] = textsOf(list)
  if (list.length === 1 && /^(NOT )?BETWEEN( SYMMETRIC)?$/.test(only ?? '')) return
  operator(list)
}

function momentOnly(kind: string): void {
  if (!/^SVFOP_(CURRENT_DATE|CURRENT_TIME|CURRENT_TIMESTAMP|LOCALTIME|LOCALTIMESTAMP)(_N)?$/.test(kind))
    refuse(`${kind.slice(6)} is not possible`)
}

/** No person writes deeper statements, and their walk would overflow the stack. */
const deepest = 500

interface Named {
  /** In bytes. */
  location?: number
  schemaname?: string
  relname?: string
  fields?: unknown[]
  ctename?: string
  withClause?: object
}

const walkMembers = (name: string, node: object, context: Context): void => {
  const members = Object.hasOwn(nodes, name) ? nodes[name] : undefined
  if (members === undefined) return refuse(`${spoken[name] ?? name} is not possible`)
  const { location = 0, schemaname, relname, fields, ctename, withClause } = node as Named
  if (schemaname !== undefined && context.named.includes(relname ?? ''))
    refuse(`${relname ?? ''} is also a name of WITH; give that one another name`)
  // Names of WITH hold in its SELECT alone, and from the one behind them on.
  const { named } = context
  if (name === 'SelectStmt' && withClause !== undefined) walkMembers('WithClause', withClause, context)
  if (schemaname !== undefined || (name === 'ColumnRef' && fields?.length === 3))
    context.qualified.push(location)
  if (++context.depth > deepest) refuse(`it is nested deeper than ${String(deepest)} levels`)
  for (const [key, value] of Object.entries(node)) {
    if (key === 'location') continue
    const member = Object.hasOwn(members, key) ? members[key] : undefined
    if (member === undefined) refuse(`${name} with ${key} is not possible`)
    else if (typeof member === 'function') member(value, context)
    else if (member === 'walk') walk(value, context)
    else if (member !== 'plain') walkMembers(member.bare, value as object, context)
  }
  if (name === 'SelectStmt') context.named = named
  if (ctename !== undefined) context.named = [...context.named, ctename]
  context.depth--
}

const walk = (value: unknown, context: Context): void => {
  if (Array.isArray(value)) return value.forEach((item) => walk(item, context))
  if (typeof value !== 'object' || value === null) return refuse('a part of it cannot be judged')
  // A plain DISTINCT is an empty object.
  for (const [name, node] of Object.entries(value)) walkMembers(name, node as object, context)
}

interface Parsed {
  stmts?: { stmt?: Record<string, object> }[]
}

const parsed = (text: string, placeOf: (character: number) => number): Parsed => {
  try {
    return parseSync(text)
  } catch (error) {
    const place = (error as { sqlDetails?: { cursorPosition?: number } }).sqlDetails?.cursorPosition
    const at = place === undefined || place < 0 ? undefined : placeOf(place + 1)
    throw invalid(
      `statement: ${(error as Error).message}${at === undefined ? '' : ` (at character ${String(at)})`}`,
      [{ path: 'statement', message: (error as Error).message }],
    )
  }
}

/** The parser is a WebAssembly module: 15 ms, once. */
export const loadParser = loadModule

/** The schema of a name, as a statement may write it. */
const schemaOfName = /^(?:"provenance"|provenance)[ \t\r\n\f\v]*\.[ \t\r\n\f\v]*/i

/**
 * The statement with spaces where names carry their schema. The session's search path finds the
 * views, so that a statement reads the selected instance, whose views may have another schema.
 */
const withoutSchema = (text: string, qualified: readonly number[]): string => {
  if (qualified.length === 0) return text
  const bytes = Buffer.from(text)
  for (const at of qualified) {
    const written = schemaOfName.exec(bytes.subarray(at, at + 256).toString('latin1'))?.[0]
    if (written === undefined)
      return refuse('a name in it has its schema in an unusual form; leave the schema out')
    bytes.fill(' ', at, at + written.length)
  }
  return bytes.toString()
}

const grows: typeof mayGrow = (statement, lengthOf) => {
  try {
    return mayGrow(statement, lengthOf)
  } catch (error) {
    if (error instanceof NoColumn) return refuse(`${error.message.slice(0, 160)} is not a column`)
    throw error
  }
}

/** A value up to this length needs no judgement of its own. */
export const shortValue = 8

/**
 * Judges a statement with `$1`, `$2`, … in the places of its placeholders.
 * @param entities table by name, of all names that may be read
 * @param lengthOf the characters of a value, by the number of its placeholder
 * @returns the table it reads, how many placeholders it has, and its text without names of schemas
 * @throws Refusal `invalid` with the reason, for everything but one SELECT on one entity
 */
export const judge = (
  text: string,
  entities: ReadonlyMap<string, string>,
  placeOf: (character: number) => number,
  lengthOf: (placeholder: number) => number = () => shortValue,
): { table: string; placeholders: number; text: string } => {
  const { stmts = [] } = parsed(text, placeOf)
  if (stmts.length !== 1)
    refuse(stmts.length === 0 ? 'it is empty' : `it is ${String(stmts.length)} statements; send one`)
  const [[kind, statement] = ['', {}]] = Object.entries(stmts[0]?.stmt ?? {})
  if (kind !== 'SelectStmt') refuse(`${kind.replace(/Stmt$/, '')} is not a read; only SELECT is`)
  const context: Context = { entities, read: new Set(), placeholders: 0, depth: 0, qualified: [], named: [] }
  walkMembers('SelectStmt', statement ?? {}, context)
  if (grows(statement ?? {}, lengthOf))
    refuse(
      `the values of one row may come to more than ${String(mostCharacters)} characters; use shorter values, ` +
        'or fewer replacements, aggregates and repetitions of a column in each other',
    )
  const [table, other] = context.read
  if (table === undefined) return refuse('it reads no entity')
  if (other !== undefined)
    refuse(`it reads ${[...context.read].sort().join(' and ')}; a statement reads one entity`)
  return { table, placeholders: context.placeholders, text: withoutSchema(text, context.qualified) }
}
