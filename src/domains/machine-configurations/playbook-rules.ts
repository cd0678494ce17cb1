import { isFields } from '../../json-object.ts'

/**
 * A rule that a playbook breaks, at the dotted path of a key or item. The paths are those of
 * `parseYaml`.
 */
export interface PlaybookFinding {
  path: string
  message: string
}

const playKeys = new Set(
  (
    'name hosts gather_facts become become_user become_method vars tasks pre_tasks post_tasks ' +
    'handlers environment any_errors_fatal ' +
    'max_fail_percentage serial tags timeout no_log force_handlers gather_subset gather_timeout ' +
    'ignore_errors ignore_unreachable'
  ).split(' '),
)
const taskKeys = new Set(
  (
    'name when register become become_user become_method vars tags loop loop_control until retries ' +
    'delay changed_when failed_when ' +
    'ignore_errors ignore_unreachable no_log notify listen environment args async poll timeout ' +
    'run_once throttle any_errors_fatal check_mode diff ' +
    'with_items with_list with_dict with_sequence with_together with_nested with_indexed_items ' +
    'with_flattened with_subelements'
  ).split(' '),
)
const blockKeys = ['block', 'rescue', 'always']
/** Modules that read files of the controller, run there, or load more tasks from there. */
const controllerModules = new Set(
  (
    'script template fetch assemble add_host group_by include include_tasks import_tasks ' +
    'include_role import_role import_playbook include_vars ' +
    'local_action async_status validate_argument_spec'
  ).split(' '),
)
/** Modules that read a file of the controller unless `remote_src` is set. */
const copyingModules = new Set(['copy', 'unarchive'])
const connectionVariable = new RegExp(
  `^ansible_(${[
    'connection|host|port|user|password|ssh_\\w+|shell_\\w+|local\\w*|paramiko_\\w+',
    'become_exe|delegated_vars|playbook_python',
  ].join('|')})$`,
)
const assignsConnection = /\bansible_(connection|host|ssh_\w+|shell_executable)\s*=/
const controllerNames = /(^|[,:&!\s])(localhost|127\.\d+\.\d+\.\d+|::1)($|[,:\s])/

const below = (path: string, key: string | number): string =>
  path === '' ? String(key) : `${path}.${String(key)}`

/** Keys whose values are expressions of Jinja without its marks. */
const expressionKeys = new Set('when until changed_when failed_when break_when that var'.split(' '))
const isExpression = (key: string, value: unknown): boolean =>
  expressionKeys.has(key) ||
  (/(^|\.)(debug|assert)$/.test(key) && typeof value === 'string' && /\b(var|that)\s*=/.test(value))

/** A comment or a raw block, which run no code, or the begin of code. */
const jinjaMark = /\{#[^]*?(?:#\}|$)|\{%[-+]?\s*raw\s*-?%\}[^]*?(?:\{%[-+]?\s*endraw\s*[-+]?%\}|$)|\{\{|\{%/g
const jinjaToken = /"(?:\\[^]|[^"\\])*"|'(?:\\[^]|[^'\\])*'|[^]/y

/** All code of a text of Jinja, quoted texts left out. `isCode`: the text begins within code. */
const codeIn = (text: string, isCode: boolean): string => {
  let code = ''
  let at = 0
  for (let isBegun = isCode; ; isBegun = false) {
    if (!isBegun) {
      jinjaMark.lastIndex = at
      const mark = jinjaMark.exec(text)?.[0]
      if (mark === undefined) return code
      at = jinjaMark.lastIndex
      if (mark.length > 2) continue
    }
    // Within brackets, two closing braces are no end.
    for (let depth = 0; at < text.length && (depth > 0 || !/[}%]\}/y.test(text.slice(at, at + 2)));) {
      jinjaToken.lastIndex = at
      const token = jinjaToken.exec(text)?.[0] ?? ''
      at += token.length
      if ('([{'.includes(token)) depth++
      else if (')]}'.includes(token)) depth = Math.max(0, depth - 1)
      code += token.length === 1 ? token : "''"
    }
    code += '\n'
  }
}

const lookupCall = /\b(lookup|query|q)\s*\(/
/** No attribute (`url.query`) and no argument (`query=`). */
const lookupName = /(?<!\w|\.\s{0,9})(lookup|query|q)\b(?!\s*=[^=])/

/** Whether a text may run a lookup. `isBare`: it may be an expression without marks. */
const looksUp = (text: string, isBare: boolean): boolean =>
  lookupCall.test(text) ||
  lookupName.test(codeIn(text, false)) ||
  (isBare && lookupName.test(codeIn(text, true))) ||
  // This header gives code other marks.
  (text.startsWith('#jinja2:') && lookupName.test(text))

/**
 * Refuses, at any place, the controller's address and lookups, which read and run on the
 * controller. `isBare`: as in `looksUp`.
 */
const anywhere = (value: unknown, path: string, found: PlaybookFinding[], isBare = false): void => {
  const message =
    'lookup, query and q are lookups, which run on the controller; let a task on the machine read what is ' +
    'needed, and give a variable another name'
  if (typeof value === 'string') {
    if (looksUp(value, isBare)) found.push({ path, message })
    if (assignsConnection.test(value))
      found.push({
        path,
        message: 'the connection to the machine is set by the service; leave the variable out',
      })
    return
  }
  if (typeof value !== 'object' || value === null) return
  for (const [key, item] of Object.entries(value)) {
    const at = below(path, key)
    if (!Array.isArray(value) && connectionVariable.test(key))
      found.push({
        path: at,
        message: `the connection to the machine is set by the service; leave ${JSON.stringify(key)} out`,
      })
    if (looksUp(key, false)) found.push({ path: at, message })
    anywhere(item, at, found, Array.isArray(value) ? isBare : isExpression(key, item))
  }
}

const moduleProblem = (given: string, value: unknown, args: unknown): string | undefined => {
  const name = given.replace(/^ansible\.(builtin|legacy)\./, '')
  if (/[^a-z0-9_]/.test(name))
    return `${JSON.stringify(given)} is no module of ansible-core; use modules of ansible.builtin`
  if (controllerModules.has(name))
    return (
      `${JSON.stringify(given)} works with files of the controller or runs there; use a module that ` +
      'runs on the machine'
    )
  if (!copyingModules.has(name)) return undefined
  const fields = { ...(isFields(args) ? args : {}), ...(isFields(value) ? value : {}) }
  if (typeof value === 'string' || ('src' in fields && fields['remote_src'] !== true))
    return (
      `${JSON.stringify(given)} would read a file of the controller; give "content", or "src" with ` +
      '"remote_src: true"'
    )
  return undefined
}

const judgeTask = (task: unknown, path: string, found: PlaybookFinding[]): void => {
  if (!isFields(task)) return void found.push({ path, message: 'a task must be an object with a module' })
  const inner = blockKeys.filter((key) => key in task)
  if (inner.length > 0) {
    for (const key of inner) judgeTasks(task[key], below(path, key), found)
    for (const key of Object.keys(task))
      if (!blockKeys.includes(key) && !taskKeys.has(key))
        found.push({ path: below(path, key), message: `${JSON.stringify(key)} is not taken at a block` })
    return
  }
  const modules = Object.keys(task).filter((key) => !taskKeys.has(key))
  for (const key of modules) {
    const problem =
      key === 'delegate_to' || key === 'delegate_facts' || key === 'connection'
        ? `${JSON.stringify(key)} leads away from the machine; leave it out`
        : key === 'action'
          ? 'name the module itself instead of "action"'
          : key.startsWith('with_')
            ? `${JSON.stringify(key)} is a lookup on the controller; use "loop"`
            : moduleProblem(key, task[key], task['args'])
    if (problem !== undefined) found.push({ path: below(path, key), message: problem })
  }
  if (modules.length === 0) found.push({ path, message: 'a task must name a module' })
}

const judgeTasks = (tasks: unknown, path: string, found: PlaybookFinding[]): void => {
  if (tasks === null || tasks === undefined) return
  if (!Array.isArray(tasks)) return void found.push({ path, message: 'must be a list of tasks' })
  tasks.forEach((task, index) => judgeTask(task, below(path, index), found))
}

const judgeHosts = (hosts: unknown, path: string, found: PlaybookFinding[]): void => {
  const patterns = Array.isArray(hosts) ? hosts : [hosts]
  const texts = patterns.filter((one): one is string => typeof one === 'string' && one.trim() !== '')
  if (texts.length === 0 || texts.length !== patterns.length)
    return void found.push({ path, message: 'a play must have "hosts"; write "hosts: all"' })
  for (const text of texts)
    if (controllerNames.test(text) || text.includes('{{'))
      found.push({
        path,
        message: `${JSON.stringify(text.slice(0, 80))} may be the controller; write "hosts: all"`,
      })
}

const judgePlay = (play: unknown, path: string, found: PlaybookFinding[]): void => {
  if (!isFields(play))
    return void found.push({ path, message: 'a play must be an object with "hosts" and "tasks"' })
  if ('hosts' in play) judgeHosts(play['hosts'], below(path, 'hosts'), found)
  else found.push({ path, message: 'a play must have "hosts"; write "hosts: all"' })
  for (const key of Object.keys(play))
    if (!playKeys.has(key))
      found.push({
        path: below(path, key),
        message:
          key === 'roles' || key === 'import_playbook' || key === 'vars_files'
            ? `${JSON.stringify(key)} reads files that a playbook does not bring; write the tasks out`
            : `${JSON.stringify(key)} is not taken at a play`,
      })
  const lists = ['tasks', 'pre_tasks', 'post_tasks', 'handlers']
  for (const key of lists) judgeTasks(play[key], below(path, key), found)
  if (!lists.slice(0, 3).some((key) => Array.isArray(play[key]) && play[key].length > 0))
    found.push({ path, message: 'a play must have at least one task' })
}

/** Every rule of the service that a playbook, as plain data, breaks. */
export const playbookFindings = (plays: unknown): PlaybookFinding[] => {
  if (!Array.isArray(plays) || plays.length === 0)
    return [{ path: '', message: 'a playbook must be a list of at least one play' }]
  const found: PlaybookFinding[] = []
  plays.forEach((play, index) => judgePlay(play, String(index), found))
  anywhere(plays, '', found)
  return found
}
