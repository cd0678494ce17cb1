import { expect, test } from '@jest/globals'
import { chmodSync, mkdtempSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { sandboxFault } from '../../src/drivers/ansible/sandbox.ts'
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
