import { BuildError } from './errors.ts'

/**
 * Reads Apptainer's definition files as far as they name what is outside of them.
 * https://apptainer.org/docs/user/main/definition_files.html
 */

/** What a stage may begin with. The others would fetch from addresses without a check. */
const archives: readonly string[] = ['localimage', 'docker-archive', 'oci-archive']
const headers: readonly string[] = ['bootstrap', 'from', 'registry', 'namespace', 'stage']
const sections: readonly string[] = [
  ...['help', 'setup', 'pre', 'files', 'labels', 'environment', 'post', 'runscript', 'test', 'startscript'],
  ...['arguments', 'appinstall', 'applabels', 'appfiles', 'appenv', 'apptest', 'apphelp', 'apprun'],
  'appstart',
]

export interface Definition {
  /** Images that stages begin with, each once. */
  images: readonly string[]
  /** The definition for Apptainer, which finds each image as the archive of that path. */
  textFor: (archiveOf: (image: string) => string) => string
}

const shown = (text: string): string => JSON.stringify(text.slice(0, 200))

interface Section {
  name: string
  /** What stands behind the name, like `from stage`. */
  rest: string
  lines: string[]
}
interface Stage {
  header: Map<string, string>
  sections: Section[]
}

const isBootstrap = (line: string, isInHeader: boolean): boolean =>
  isInHeader ? /^\s*bootstrap\s*:/i.test(line) : /^bootstrap\s*:/i.test(line)

const addHeader = (stage: Stage, line: string): void => {
  const plain = line.replace(/(^|\s)#.*$/s, '').trim()
  if (plain === '') return
  const [, key = '', value = ''] = /^(\w+)\s*:\s*(.*)$/s.exec(plain) ?? []
  const name = key.toLowerCase()
  if (!headers.includes(name))
    throw new BuildError(
      `the definition has the header ${shown(key === '' ? plain : key)}; builds take ${headers.join(', ')}`,
    )
  if (stage.header.has(name))
    throw new BuildError(`the definition has the header ${shown(key)} twice in a stage`)
  stage.header.set(name, value.trim())
}

/**
 * The stages of a definition, with their headers and sections. In each expression a dot means every character:
 * one that failed at U+2028 would be tried from each place before it.
 */
const stagesOf = (text: string): Stage[] => {
  const stages: Stage[] = []
  let section: Section | undefined
  for (const line of text.replaceAll('\r\n', '\n').replaceAll('\\\n', '\\\0').split('\n')) {
    const whole = line.replaceAll('\\\0', '\\\n')
    const isInHeader = section === undefined
    if (isBootstrap(line, isInHeader)) {
      stages.push({ header: new Map(), sections: [] })
      section = undefined
    }
    const stage = stages.at(-1)
    const [, name = '', rest = ''] = /^\s*%(\w+)[ \t]*(.*)$/s.exec(line) ?? []
    if (sections.includes(name.toLowerCase())) {
      if (stage === undefined) throw new BuildError(`the definition has %${name} before its Bootstrap`)
      section = { name: name.toLowerCase(), rest: rest.trim(), lines: [] }
      stage.sections.push(section)
    } else if (section !== undefined) section.lines.push(whole)
    else if (stage !== undefined) addHeader(stage, line.replaceAll('\\\0', ' '))
    else if (!/^\s*(#.*)?$/s.test(line))
      throw new BuildError(`the definition begins with ${shown(line)} instead of Bootstrap`)
  }
  if (stages.length === 0) throw new BuildError('the definition has no Bootstrap')
  return stages
}

/** Values of `%arguments`, and those of the build, which take their place. */
const valuesOf = (text: string, given: Readonly<Record<string, string>>): ReadonlyMap<string, string> => {
  const values = new Map<string, string>()
  let isInside = false
  for (const line of text.split('\n')) {
    const name = /^\s*%(\w+)/.exec(line)?.[1]?.toLowerCase()
    if (name !== undefined && sections.includes(name)) isInside = name === 'arguments'
    else if (isBootstrap(line, false)) isInside = false
    else if (isInside) {
      const [, key, value = ''] = /^\s*(\w+)\s*=(.*)$/s.exec(line) ?? []
      if (key !== undefined) values.set(key, value.trim().replace(/^(["'])(.*)\1$/s, '$2'))
    }
  }
  for (const [key, value] of Object.entries(given)) values.set(key, value)
  return values
}

/** A definition may name a long value often. */
const mostAdded = 2 ** 20

const expanded = (text: string, values: ReadonlyMap<string, string>): string => {
  let added = 0
  const full = text.replaceAll(/\{\{[ \t]*(\w+)[ \t]*\}\}/g, (whole, name: string) => {
    const value = values.get(name)
    if (value === undefined)
      throw new BuildError(`the definition uses ${whole}, and neither %arguments nor buildArguments has it`)
    if (/[\n\r\0]/.test(value)) throw new BuildError(`the build argument ${name} has more than one line`)
    added += value.length
    if (added > mostAdded)
      throw new BuildError(
        `the values of arguments add more than ${mostAdded} characters to the definition; put long texts into files ` +
          'of the context',
      )
    return value
  })
  // Apptainer looks for arguments once more.
  const [left] = /\{\{\s*\w+\s*\}\}/.exec(full) ?? []
  if (left !== undefined)
    throw new BuildError(
      `the value of an argument puts ${shown(left)} into the definition, which Apptainer would take for an argument; ` +
        'put that text into a file of the context',
    )
  return full
}

/** The image that a stage begins with; undefined: it begins with a file or with nothing. */
const imageOf = ({ header }: Stage): string | undefined => {
  const bootstrap = (header.get('bootstrap') ?? '').toLowerCase()
  const from = header.get('from') ?? ''
  if (bootstrap === 'scratch') return undefined
  if (bootstrap === 'docker') {
    if (from === '') throw new BuildError('the definition has Bootstrap: docker without From; name the image')
    return [header.get('registry'), header.get('namespace'), from.replace(/^(docker:)?\/\//, '')]
      .filter((part) => part !== undefined && part !== '')
      .join('/')
  }
  if (!archives.includes(bootstrap))
    throw new BuildError(
      `the definition has Bootstrap: ${shown(bootstrap)}; builds take docker, scratch, ${archives.join(', ')}: ` +
        'the others fetch from hosts that the service does not judge',
    )
  judgePath(from, `From of Bootstrap: ${bootstrap}`)
  return undefined
}

const judgePath = (path: string, what: string): void => {
  if (path === '' || path.startsWith('/') || path.startsWith('~') || path.split('/').includes('..'))
    throw new BuildError(`${what} of the definition has ${shown(path)}; name a file of the build context`)
}

/** `%files` takes what the context has; `%files from STAGE` takes from another stage. */
const judgeFiles = ({ name, rest, lines }: Section): void => {
  if (name !== 'files' && name !== 'appfiles') return
  if (name === 'files' && /^from\s/.test(rest)) return
  for (const line of lines) {
    const [source = ''] = line
      .trim()
      .replace(/^(["'])/, '')
      .split(/["'\s]/)
    if (source !== '' && !source.startsWith('#')) judgePath(source, `%${name}`)
  }
}

/**
 * Reads a definition with the build's arguments in place.
 * @throws BuildError for a definition that needs more than its context and images
 */
export const readDefinition = (text: string, given: Readonly<Record<string, string>> = {}): Definition => {
  if (text.includes('\0')) throw new BuildError('the definition has a zero byte')
  const stages = stagesOf(expanded(text, valuesOf(text, given)))
  const images = stages.map(imageOf)
  for (const stage of stages) stage.sections.forEach(judgeFiles)
  const textOf = (stage: Stage, archive: string | undefined): string => {
    const header: [string, string][] =
      archive === undefined
        ? [...stage.header]
        : [
            ['bootstrap', 'docker-archive'],
            ['from', archive],
            ...[...stage.header].filter(([key]) => key === 'stage'),
          ]
    return [
      ...header.map(([key, value]) => `${key}: ${value}`),
      ...stage.sections
        .filter(({ name }) => name !== 'arguments')
        .flatMap(({ name, rest, lines }) => [`%${name} ${rest}`.trim(), ...lines]),
      '',
    ].join('\n')
  }
  return {
    images: [...new Set(images.filter((image) => image !== undefined))],
    textFor: (archiveOf) =>
      stages
        .map((stage, at) => {
          const image = images[at]
          return textOf(stage, image === undefined ? undefined : archiveOf(image))
        })
        .join('\n'),
  }
}
