import type { ByteName, StoragePath } from '../../drivers/storage/paths.ts'

/**
 * Whether a link in `folder`, below the start of a tree, leads to a place of the same tree whatever
 * other inner links are there. `..` is taken at the head only: behind a name that is a link it
 * leads elsewhere than it seems.
 */
export const isInner = (folder: StoragePath, target: ByteName | undefined): boolean => {
  if (target === undefined || target === '' || target.startsWith('/')) return false
  const names = target.split('/').filter((name) => name !== '' && name !== '.')
  const first = names.findIndex((name) => name !== '..')
  const up = first === -1 ? names.length : first
  return up <= folder.length && !names.slice(up).includes('..')
}
