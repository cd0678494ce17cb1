import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { epigenomics, montage, type WfInstance } from '../bench/workloads.ts'
import type { TestService } from './support/service.ts'
import { expectSimulated, openSite } from './support/simulated-instances.ts'
import { openShare } from './support/share.ts'

/** Tasks, edges and files, and the number of tasks of each program. */
const shapeOf = ({ workflow: { specification, execution } }: WfInstance) => ({
  tasks: specification.tasks.length,
  edges: specification.tasks.reduce((sum, { parents }) => sum + parents.length, 0),
  files: specification.files.length,
  programs: Object.fromEntries(
    [...Map.groupBy(execution.tasks, ({ command }) => command.program)].map(([program, tasks]) => [
      program,
      tasks.length,
    ]),
  ),
})

describe('generated workflows', () => {
  test('a seed gives the same bytes each time, another seed the same graph with other runtimes', () => {
    expect(JSON.stringify(montage({ seed: 7 }))).toBe(JSON.stringify(montage({ seed: 7 })))
    const [one, other] = [montage({ seed: 7 }), montage({ seed: 8 })]
    expect(other.workflow.specification.tasks).toEqual(one.workflow.specification.tasks)
    expect(other.workflow.execution).not.toEqual(one.workflow.execution)
  })

  test('have the numbers of the recorded ones, at each size', () => {
    expect(shapeOf(montage())).toEqual({
      ...{ tasks: 1_066, edges: 3_012, files: 1_308 },
      programs: {
        mProject: 75,
        mDiffFit: 900,
        mConcatFit: 3,
        mBgModel: 3,
        mBackground: 75,
        mImgtbl: 3,
        mAdd: 3,
        mViewer: 4,
      },
    })
    expect(shapeOf(montage({ side: 4 }))).toMatchObject({ tasks: 472, edges: 1_284, files: 633 })
    expect(shapeOf(montage({ side: 6 }))).toMatchObject({ tasks: 2_122, edges: 6_114, files: 2_463 })
    expect(shapeOf(epigenomics())).toMatchObject({ tasks: 1_695, edges: 2_108, files: 2_119 })
    expect(shapeOf(epigenomics({ lanes: 72, chunks: 2_462 }))).toMatchObject({ tasks: 9_995 })
  })
})

describe('generated workflows are imported, planned and simulated over HTTP', () => {
  let service: TestService
  beforeAll(async () => {
    service = await openSite()
  })
  afterAll(() => service[Symbol.asyncDispose]())

  const kinds: [name: string, generate: () => object][] = [
    ['montage', () => montage()],
    ['epigenomics', () => epigenomics()],
  ]
  test.each(kinds.filter(openShare(2)))(
    '%s',
    (name, generate) => expectSimulated(service, name, JSON.stringify(generate())),
    60_000,
  )
})
