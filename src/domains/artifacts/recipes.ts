import type { AddressJudge } from '../../clients/http.ts'
import { append } from '../../lists.ts'
import { imageFault } from './images.ts'

/**
 * What a recipe makes the engine fetch. A builder reads a recipe by its own rules, so that it is read
 * here line by line and by each rule of continued lines: what any of the readings names is judged.
 * https://docs.docker.com/reference/dockerfile/
 */

export interface RecipeSources {
  /** Programs that read the recipe in place of the engine. They are among the images. */
  frontends: string[]
  /** Bases, frontends, and sources of copies and mounts. Names of stages are among them. */
  images: string[]
  /** Addresses of `ADD`. */
  addresses: string[]
  /** Sources whose value is not known before the build. */
  unclear: string[]
  /** Names of stages, in lower case. */
  stages: string[]
  /** A character whose meaning depends on the reader, such as `U+0085`. */
  odd?: string
  /** The number of a line that is too long for builders; the recipe is not read then. */
  long?: number
}

/** Arguments that builders give to every `FROM`. */
const platformArguments = (architecture: string): [string, string][] =>
  ['BUILD', 'TARGET'].flatMap((side): [string, string][] => [
    [`${side}PLATFORM`, `linux/${architecture}`],
    [`${side}OS`, 'linux'],
    [`${side}ARCH`, architecture],
    [`${side}VARIANT`, ''],
  ])

const withoutQuotes = (text: string): string => text.replaceAll(/["'\\`]/g, '')

/** Bytes of the longest line that builders read. */
const longestLine = 65_535

/** Variables that hold each other grow without end. */
const longestValue = 4_096

/** A word with its variables in place; undefined: it cannot be evaluated here. */
const expanded = (word: string, values: ReadonlyMap<string, string>): string | undefined => {
  // Single quotes keep a variable as it is written.
  if (word.length > longestValue || (word.includes("'") && word.includes('$'))) return undefined
  let text = withoutQuotes(word)
  let isClear = true
  let added = 0
  const valueOf = (name: string): string => {
    const value = values.get(name) ?? ''
    added += value.length
    // A builder expands no value again.
    if (added <= longestValue && !/[${}]/.test(value)) return value
    isClear = false
    return ''
  }
  for (let before = ''; before !== text && isClear;) {
    before = text
    text = text
      .replaceAll(/\$([A-Za-z_]\w*)/g, (_, name: string) => valueOf(name))
      // The innermost braces first.
      .replaceAll(
        /\$\{([A-Za-z_]\w*)(?:(:?)([-+])([^${}]*))?\}/g,
        (_, name: string, colon?: string, sign?: string, other?: string) => {
          const value = valueOf(name)
          const isSet = colon === '' ? values.has(name) : value !== ''
          if (sign === undefined) return value
          if (sign === '-') return isSet ? value : (other ?? '')
          return isSet ? (other ?? '') : ''
        },
      )
    if (text.length > longestValue) isClear = false
  }
  return isClear && !/[${}]/.test(text) ? text : undefined
}

/** Words of a line; quotes hold spaces together. */
const wordsOf = (text: string): string[] =>
  text.match(/(?:\\.|"(?:\\.|[^"\\])*"|'[^']*'|[^\s"'\\]|["'\\])+/g) ?? []

/** Spaces of Go or of JavaScript, and not of both. */
const oddSpace = /[\u0085\ufeff]/

/**
 * The end of a continued line, by each escape character. To newer builders an escape character
 * behind another one continues nothing.
 */
const continuations = [/\\[ \t]*$/, /(?<=^|[^\\])\\[ \t]*$/, /`[ \t]*$/, /(?<=^|[^`])`[ \t]*$/]

/** The lines of a recipe: each alone, or continued where they end so. */
const linesOf = (text: string, continuation: RegExp | undefined): string[] => {
  const lines = text
    .split('\n')
    .map((line) => line.replace(/(?<!\r)\r+$/, ''))
    .filter((line) => !/^\s*(#|$)/.test(line))
  if (continuation === undefined) return lines
  const joined: string[] = []
  let open = ''
  for (const line of lines) {
    const end = line.search(continuation)
    if (end >= 0) open += line.slice(0, end)
    else {
      joined.push(open + line)
      open = ''
    }
  }
  return open === '' ? joined : [...joined, open]
}

const schemes = ['http://', 'https://', 'git://', 'ssh://']
const isRemote = (source: string): boolean =>
  schemes.some((scheme) => source.toLowerCase().startsWith(scheme)) || /^[^/][^/@]*@[^/]+:/.test(source)

/** Whether the value of a variable can make an address of a source. Images set variables, too. */
const mayBecomeRemote = (source: string): boolean => {
  const head = source.slice(0, source.indexOf('$')).toLowerCase()
  return source.includes('$') && (head.includes('@') || schemes.some((scheme) => scheme.startsWith(head)))
}

const withoutFlags = (rest: string): string => rest.replace(/^(\s*--\S+)+/, '').trim()

/** The sources of an `ADD`: all of its words but flags and the last. */
const addedBy = (rest: string): string[] => {
  const plain = withoutFlags(rest)
  const readings: string[][] = []
  const [array = ''] = /^\[\s*(?:"(?:\\.|[^"\\])*"\s*(?:,\s*)?)*\]/.exec(plain) ?? []
  try {
    readings.push(JSON.parse(array) as string[])
  } catch {
    // Builders read it as words then.
  }
  // Some builders take an array with words behind it. To all of them every space ends a word.
  if (array !== plain || readings.length === 0)
    readings.push(wordsOf(plain).map(withoutQuotes), plain.split(/\s+/).map(withoutQuotes))
  return readings.flatMap((words) => words.slice(0, -1))
}

/** Names of heredocs that end at a line which the readings here would take for another. */
const oddHeredocs = (rest: string): string[] =>
  [...rest.matchAll(/(?:^|\s)\d*<<-?("[^"]*"|'[^']*'|[^\s<]*)(?=\s|$)/g)]
    .map(([, name = '']) => name)
    // Without a name it is an operator of the shell.
    .filter((name) => name !== '' && !/^(["']?)\w+\1$/.test(name))
    .map((name) => `<<${name}`)

/** Puts the words of an `ARG` into the values. */
const setArguments = (
  rest: string,
  values: Map<string, string>,
  given: Readonly<Record<string, string>>,
): void => {
  for (const word of wordsOf(rest)) {
    const [name = ''] = word.split('=', 1)
    const usual = word.includes('=') ? expanded(word.slice(name.length + 1), values) : values.get(name)
    const value = Object.hasOwn(given, name) ? given[name] : word.includes('=') ? (usual ?? '${') : usual
    if (value !== undefined) values.set(name, value)
  }
}

/** Adds what a reading of the recipe names. */
const readLines = (
  lines: readonly string[],
  values: Map<string, string>,
  given: Readonly<Record<string, string>>,
  found: RecipeSources,
): void => {
  let isBeforeStages = true
  for (const line of lines) {
    const [, word = '', rest = ''] = /^\s*(?:ONBUILD\s+)*(\w+)\s+(.*)$/is.exec(line) ?? []
    const instruction = word.toUpperCase()
    if (instruction === 'FROM') {
      isBeforeStages = false
      const [base = '', as = '', stage = ''] = wordsOf(withoutFlags(rest))
      const image = expanded(base, values)
      // `FROM node AS node` takes an image, whatever its stage is called.
      if (as.toUpperCase() === 'AS' && stage.toLowerCase() !== image?.toLowerCase())
        found.stages.push(stage.toLowerCase())
      if (image === undefined) found.unclear.push(base)
      else found.images.push(image)
    }
    // Only arguments before the first stage are known to FROM.
    if (instruction === 'ARG' && isBeforeStages) setArguments(rest, values, given)
    if (['ADD', 'COPY', 'RUN'].includes(instruction)) {
      const plain = withoutQuotes(rest)
      const form = plain.includes('--mount') ? /(?:^|[\s,=])(?:--)?from=([^\s,]+)/gi : /--from=(\S+)/gi
      // Builders refuse a variable here.
      for (const [, from = ''] of plain.matchAll(form)) if (!from.includes('$')) found.images.push(from)
      append(found.unclear, oddHeredocs(rest))
    }
    if (instruction !== 'ADD') continue
    for (const source of addedBy(rest))
      if (isRemote(source)) found.addresses.push(source)
      else if (mayBecomeRemote(source)) found.unclear.push(source)
  }
}

const each = (values: readonly string[]): string[] => [...new Set(values.filter((value) => value !== ''))]

/**
 * What a recipe makes the engine fetch, with the build's arguments in place.
 * @param architecture of the image, as engines name it
 */
export const sourcesOfRecipe = (
  whole: string,
  given: Readonly<Record<string, string>>,
  architecture: string,
): RecipeSources => {
  // Builders drop a byte order mark.
  const text = whole.replace(/^\ufeff/, '')
  const found: RecipeSources = { images: [], frontends: [], addresses: [], unclear: [], stages: [] }
  const lines = text.split('\n')
  const long = lines.findIndex((line) => Buffer.byteLength(line) > longestLine) + 1
  if (long > 0) return { ...found, long }
  for (const continuation of [undefined, ...continuations])
    readLines(linesOf(text, continuation), new Map(platformArguments(architecture)), given, found)
  for (const line of lines) {
    // Builders look for it before the first instruction.
    if (!/^\s*(#|\/\/|$)/.test(line)) break
    found.frontends.push(/^\s*(?:#|\/\/)\s*syntax\s*=\s*(\S+)/i.exec(line)?.[1] ?? '')
  }
  found.frontends.push(given['BUILDKIT_SYNTAX']?.trim().split(/\s/)[0] ?? '')
  append(found.images, found.frontends)
  // A frontend can be named in JSON, too.
  if (/^\s*(#![^\n]*\n\s*)?\{/.test(text)) found.unclear.push('{')
  const odd = oddSpace.exec(text)?.[0]
  return {
    images: each(found.images.map((image) => image.replace(/^docker(-image)?:\/\//, ''))),
    addresses: each(found.addresses),
    unclear: each(found.unclear),
    stages: each(found.stages),
    frontends: each(found.frontends),
    ...(odd === undefined
      ? {}
      : { odd: `U+${odd.charCodeAt(0).toString(16).toUpperCase().padStart(4, '0')}` }),
  }
}

/** Frontends that fetch what the recipe names, and nothing else. */
const ownFrontend =
  /^((index\.)?docker\.io\/)?docker\/dockerfile(-upstream)?(:[\w.-]+)?(@sha256:[0-9a-f]{64})?$/

/** The images of a recipe that registries have: neither stages nor `scratch`. */
export const pulledBy = ({ images, stages }: RecipeSources): string[] =>
  images.filter(
    (image) => image !== 'scratch' && !/^\d+$/.test(image) && !stages.includes(image.toLowerCase()),
  )

/** Why a recipe must not be built, as far as it is seen without the network. */
export const recipeFault = (
  { images, frontends, addresses, unclear, odd, long }: RecipeSources,
  network: boolean,
  addressAllowed: AddressJudge,
): string | undefined => {
  if (long !== undefined)
    return (
      `line ${long} of the recipe has more than ${longestLine} bytes, which builders refuse; ` +
      'continue it on further lines'
    )
  if (odd !== undefined)
    return `the recipe holds the character ${odd}, which readers take for a space or not; write a space`
  for (const image of images) {
    const fault = imageFault(image, addressAllowed)
    if (fault !== undefined) return `the recipe names ${shown(image)}: ${fault}`
  }
  const foreign = network ? undefined : frontends.find((frontend) => !ownFrontend.test(frontend))
  if (foreign !== undefined)
    return (
      `the recipe has the frontend ${shown(foreign)}, which may fetch anything, and the build has no network: take ` +
      'docker/dockerfile, or describe the build with network: true'
    )
  if (unclear[0] !== undefined)
    return (
      `the recipe has ${shown(unclear[0])}, whose value is not known before the build; write it out, and take ` +
      'files of the context by COPY'
    )
  for (const address of addresses) {
    if (!network)
      return (
        `the recipe adds ${shown(address)}, and the build has no network: put its files into the context, or ` +
        'describe the build with network: true'
      )
    const fault = imageFault(`${hostOf(address)}/`, addressAllowed)
    if (fault !== undefined) return `the recipe adds ${shown(address)}: ${fault}`
  }
  return undefined
}

const shown = (text: string): string => JSON.stringify(text.slice(0, 200))

/** Host and port of an address of `ADD`, as an image's registry is written. */
export const hostOf = (address: string): string => {
  const isUrl = /^\w+:\/\//.test(address)
  const authority = address.replace(/^\w+:\/\//, '').split(/[/?#]/, 1)[0] ?? ''
  const host = authority.slice(authority.lastIndexOf('@') + 1)
  if (!isUrl) return `${host.split(':')[0] ?? ''}:22`
  return /:\d+$/.test(host) ? host : `${host}:443`
}
