import { describe, expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import {
  blockBytes,
  parcelsOf,
  prefixByNotes,
  unitsOf,
  type MissingPart,
} from '../../src/drivers/transfer/parcels.ts'
import type { TreeEntry, Tree } from '../../src/drivers/transfer/tree.ts'

const file = (sizeBytes: number): TreeEntry => ({
  kind: 'file',
  mode: 0o644,
  sizeBytes,
  modified: 0,
  target: '',
})
const mebibyte = 1024 * 1024
const size = fc.oneof(
  fc.nat(100_000),
  fc.nat(200 * mebibyte),
  fc.constantFrom(0, 4 * mebibyte, blockBytes, blockBytes + 1, 3 * blockBytes),
)
const trees = fc
  .array(fc.tuple(size, fc.double({ min: 0, max: 0.999, noNaN: true })), { maxLength: 40 })
  .map((sizes) => ({
    tree: new Map(sizes.map(([bytes], at) => [`f${String(at)}`, file(bytes)])) as Tree,
    part: new Map(sizes.map(([, share], at) => [`f${String(at)}`, share])),
  }))

describe('splitting what is missing into streams', () => {
  test('every missing byte travels in exactly one stream, from where it is missing to the end of its unit', () => {
    fc.assert(
      fc.property(trees, fc.integer({ min: 1, max: 8 }), ({ tree, part }, streams) => {
        const needs: MissingPart[] = [...tree].flatMap(([path, entry]) =>
          [...unitsOf(path, entry)].map((unit) => ({
            unit,
            has: Math.floor(unit.length * (part.get(path) as number)),
          })),
        )
        const parcels = parcelsOf(tree, needs, ['link'], streams)
        const covered = new Map<string, [number, number][]>()
        for (const parcel of parcels) {
          const pieces =
            parcel.kind === 'pieces'
              ? parcel.pieces
              : parcel.members
                  .filter((path) => path !== 'link')
                  .map((path) => ({ path, start: 0, end: tree.get(path)!.sizeBytes }))
          for (const { path, start, end } of pieces)
            covered.set(path, [...(covered.get(path) ?? []), [start, end]])
        }
        for (const { unit, has } of needs) {
          const spans = (covered.get(unit.path) ?? []).filter(
            ([start, end]) => start < unit.offset + unit.length && end > unit.offset,
          )
          const from = Math.max(unit.offset, spans[0]?.[0] ?? -1)
          // What is small is sent as a whole, else what is there is not sent again.
          if (unit.length > 0) expect(spans).toHaveLength(1)
          expect([unit.offset, unit.offset + has]).toContain(unit.length === 0 ? unit.offset : from)
          if (has >= 256 * 1024) expect(from).toBe(unit.offset + has)
        }
        expect(
          parcels.filter((parcel) => parcel.kind === 'pack' && parcel.members.includes('link')),
        ).toHaveLength(1)
      }),
    )
  })

  test('ten thousand small files take few streams, and a large file one for each of those that are allowed', () => {
    const small: Tree = new Map(Array.from({ length: 10_000 }, (_, at) => [`f${String(at)}`, file(4096)]))
    const needsOf = (tree: Tree): MissingPart[] =>
      [...tree].flatMap(([path, entry]) => [...unitsOf(path, entry)].map((unit) => ({ unit, has: 0 })))
    expect(parcelsOf(small, needsOf(small), [], 4)).toHaveLength(5)
    const large: Tree = new Map([['r', file(512 * mebibyte)]])
    expect(parcelsOf(large, needsOf(large), [], 4).map(({ bytes }) => bytes / mebibyte)).toEqual([
      128, 128, 128, 128,
    ])
  })
})

describe('how much of a block is there, by the notes', () => {
  const block = { path: 'f', offset: blockBytes, length: 1000 }
  test.each([
    ['', 0],
    [`${String(blockBytes)} 1000\n`, 1000],
    [`${String(blockBytes)} 400\n`, 400],
    [`${String(blockBytes + 400)} 600\n${String(blockBytes)} 400\n`, 1000],
    [`${String(blockBytes + 400)} 600\n`, 0],
    [`0 ${String(blockBytes)}\n`, 0],
    [`0 ${String(blockBytes + 10)}\n`, 10],
    [`${String(blockBytes)} 400\n${String(blockBytes)} 0\n${String(blockBytes + 300)} 200\n`, 500],
    // A note whose end was lost with the disk.
    [`${String(blockBytes)} 400\n${String(blockBytes + 400)} `, 400],
  ])('%j: %i bytes', (notes, bytes) => {
    expect(prefixByNotes(notes, block)).toBe(bytes)
  })
})
