import { expect, test } from '@jest/globals'
import { execFileSync } from 'node:child_process'
import { chmodSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { maskOf } from '../../src/domains/cloud/masks.ts'
import { shownText } from '../../src/drivers/ansible/play.ts'
import { sandboxFault } from '../../src/drivers/ansible/sandbox.ts'
import { until } from '../failures/programs.ts'
import { runFolder } from '../support/run-folder.ts'

/** A folder with this program as `bwrap`. */
const withBubblewrap = (program: string): string => {
  const folder = mkdtempSync(join(runFolder(), 'bwrap-'))
  writeFileSync(join(folder, 'bwrap'), `#!/bin/sh\n${program}\n`)
  chmodSync(join(folder, 'bwrap'), 0o755)
  return folder
}

test('a sandbox that cannot be made is found before a machine is, with the words of bubblewrap', async () => {
  const refused = 'bwrap: No permissions to create new namespace'
  expect(await sandboxFault(withBubblewrap(`echo '${refused}' >&2; exit 1`))).toBe(refused)
  expect(await sandboxFault(withBubblewrap('exit 3'))).toBe('bwrap ended with 3')
  expect(await sandboxFault(withBubblewrap('kill -9 $$'))).toBe('bwrap ended with SIGKILL')
  expect(await sandboxFault('/nowhere')).toContain('ENOENT')
  // The program that it would start is the last of its words.
  expect(
    await sandboxFault(withBubblewrap('for word; do last=$word; done; [ "$last" = /usr/bin/true ]')),
  ).toBeUndefined()
})

test('a bubblewrap that is killed before its sandbox is up leaves no process, and its end is seen', async () => {
  const kept = join(mkdtempSync(join(runFolder(), 'kept-')), 'pid')
  // As its own child waits for it then.
  const waiting = withBubblewrap(`/bin/sleep 86400 & echo $! > ${kept}; kill -9 $$`)
  expect(await sandboxFault(waiting)).toBe('bwrap ended with SIGKILL')
  // A process that has ended may wait for its parent to read its end.
  const ended = () => {
    try {
      return readFileSync(`/proc/${readFileSync(kept, 'utf8').trim()}/stat`, 'utf8').includes(') Z')
    } catch {
      return true
    }
  }
  await until('the end of the process', 20, () => Promise.resolve(ended()))
})

test('the processor time of a playbook ends by a signal of its own, not by the one of want of memory', () => {
  const start = join(import.meta.dirname, '../../src/drivers/ansible/start.py')
  const limits = 'import resource; print(*resource.getrlimit(resource.RLIMIT_CPU))'
  const words = execFileSync('python3', ['-I', start, '/usr/bin/env', 'python3', '-c', limits], {
    encoding: 'utf8',
  })
  const [soft = 0, hard = 0] = words.split(' ').map(Number)
  expect(soft).toBeLessThan(hard)
})

test('a process without a free file descriptor gets errors, and goes on', () => {
  const source = (path: string) => JSON.stringify(join(import.meta.dirname, '../../src', path))
  const program = `
    import { openSync } from 'node:fs'
    import { startBubblewrap } from ${source('drivers/bubblewrap.ts')}
    import { startRunner } from ${source('drivers/runtime/local/runner.ts')}
    import { openLocalShell } from ${source('shell/local-shell.ts')}
    import { openProxyCommand } from ${source('clients/ssh/route.ts')}
    const shell = openLocalShell()
    const start = (begin) => Promise.resolve().then(begin).catch(({ message }) => console.log(message))
    try { for (;;) openSync('/dev/null') } catch {}
    await start(() => startBubblewrap(['--version']))
    await start(() => shell.run(':'))
    await start(() => startRunner({ program: '/bin/true', control: '', vmstatFile: '', onGone: () => {} }))
    await start(() => openProxyCommand('true', { host: 'h', port: 1, username: 'u' }))
    setTimeout(() => console.log('goes on'), 50)`
  const words = ['ulimit -n 100; exec "$@"', 'sh', process.execPath, '--input-type=module', '-e', program]
  const lines = execFileSync('/bin/sh', ['-c', ...words], { encoding: 'utf8' })
    .trim()
    .split('\n')
  const lack = expect.stringMatching(/^\S.* cannot be started: .*ulimit -n|^cannot run .*ulimit -n/)
  expect(lines).toEqual([lack, lack, lack, lack, 'goes on'])
})

test('a secret is masked before a text is cut, also one that the cut of the callback went through', () => {
  const secret = `canary-${'0123456789'.repeat(100)}`
  const mask = maskOf({ api_token: secret })
  const [a, z] = ['a'.repeat(490), 'z'.repeat(1_490)]
  expect(shownText([`says ${secret}`], mask)).toBe('says ********')
  expect(shownText([`${a}${secret}${'b'.repeat(3_000)}${secret}${z}`], mask)).toBe(
    `${a}********bb … *******${z}`,
  )
  // The callback has kept 16,000 characters of each side.
  const [begin, end] = [
    `${a}${'b'.repeat(30_000)}`.slice(0, 15_500),
    `${'y'.repeat(15_000)}${z}`.slice(-15_500),
  ]
  const cut = shownText([`${begin}${secret.slice(0, 500)}`, `${secret.slice(-500)}${end}`], mask)
  expect(cut).toBe(`${a}${'b'.repeat(10)} … ${'y'.repeat(7)}${z}`)
  const short = shownText(
    [secret.repeat(15) + secret.slice(0, 500), secret.slice(-500) + secret.repeat(15)],
    mask,
  )
  expect(short).toBe(' … ')
  // Secrets of every length, also one that is longer than what the callback has kept, and one behind another.
  const long = Array.from({ length: 5_000 }, (_, at) => `canary-${String(at)}.`).join('')
  for (const size of [10_000, 40_000]) {
    const big = long.slice(0, size)
    const masks = maskOf({ api_token: big, password: `pass-${'w'.repeat(7_500)}` })
    const line = 'x'.repeat(20)
    for (const text of [`${line}${big}${line}`, `pass-${'w'.repeat(7_500)}${big}pass-${'w'.repeat(7_500)}`])
      for (const kept of [16_000, 8_500, 5_000])
        expect(shownText([text.slice(0, kept), text.slice(-kept)], masks)).not.toMatch(/canary|www/)
  }
  // A part of one secret at the cut hides no other one; line breaks hide none.
  expect(maskOf({ api_token: 'abcdef', password: 'f123' })('abcdef', { after: true })).toBe('********')
  expect(mask(`warns ${secret.replaceAll(/.{79}/g, '$&\n')}`)).toBe('warns ********')
  // A text of spaces takes no longer than another one.
  expect(mask(' '.repeat(500_000))).toHaveLength(500_000)
})

test('a secret is masked in the forms in which Ansible prints it', () => {
  for (const [secret, ...printed] of [
    [`can"ary\\1`, '{"token": "can\\"ary\\\\1"}', `{'token': 'can"ary\\\\1'}`],
    [`can'ary`, '{"token": "can\'ary"}', `{'token': "can'ary"}`],
    [`can'a"ry`, '{"token": "can\'a\\"ry"}', `{'token': 'can\\'a"ry'}`],
    ['can\u00e9\u0007ary\n', '{"token": "can\\u00e9\\u0007ary\\n"}', `{'token': 'can\u00e9\\x07ary\\n'}`],
    ['canary\nis long\n', '{"token": "canary\\nis long"}', `{'token': 'canary\\nis long'}`],
  ] as const) {
    const mask = maskOf({ api_token: secret, pin: 'a"b' })
    for (const text of [secret, ...printed]) {
      const shown = mask(`it says ${text} and a"b`)
      expect(shown).toMatch(/^it says \W*(token\W*)?\*{8}\W* and a"b$/)
      expect(shown).not.toMatch(/can|ary/)
      // Also where the text was cut within it.
      const middle = text.indexOf('can') + 4
      expect(mask(text.slice(0, middle), { after: true })).not.toContain('can')
      expect(mask(text.slice(middle), { before: true })).not.toContain('ry')
    }
  }
})

test('a text of a playbook is shown as a terminal shows it', () => {
  const mask = maskOf({ api_token: 'canary' })
  expect(shownText(['\u001b[31mfailed\u001b[0m: canary\u202e\u0000\n 10%\r100%'], mask)).toBe(
    'failed: ********\ufffd\n100%',
  )
  const part = '\u001b[31mx\u001b[0m'.repeat(2_000)
  expect(shownText([part, part], mask)).toMatch(/^x{500} … x{1200}$/)
})
